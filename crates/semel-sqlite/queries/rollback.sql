-- After a failed call or a failed commit.
ROLLBACK
