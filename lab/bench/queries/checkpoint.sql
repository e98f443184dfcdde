-- What filling left behind is written now, and not while we measure.
CHECKPOINT
