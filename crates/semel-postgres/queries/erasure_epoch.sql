-- The number of erasures so far.
SELECT erasures FROM semel.epoch
