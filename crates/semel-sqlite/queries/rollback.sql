-- After a call that failed, or a commit that did.
ROLLBACK
