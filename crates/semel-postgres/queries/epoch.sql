-- How many erasures there were.
SELECT erasures FROM semel.epoch
