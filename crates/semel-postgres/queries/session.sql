-- The settings of every connection of the store. Plans are pinned: a plan that was made while the
-- table was empty would scan the whole table for as long as the connection lives.
SELECT
    set_config('search_path', 'pg_catalog', false),
    set_config('default_transaction_isolation', 'read committed', false),
    set_config('plan_cache_mode', 'force_generic_plan', false),
    set_config('enable_seqscan', 'off', false),
    set_config('enable_bitmapscan', 'off', false),
    set_config('enable_hashjoin', 'off', false),
    set_config('enable_mergejoin', 'off', false),
    set_config('enable_material', 'off', false),
    set_config('enable_sort', 'off', false),
    set_config('jit', 'off', false),
    set_config('statement_timeout', $1, false),
    set_config('lock_timeout', $2, false),
    set_config('idle_in_transaction_session_timeout', $1, false)
