-- How long profiles are kept. Stacks outlive the samples that refer to them.

ALTER TABLE mem_profiler.samples MODIFY TTL time + INTERVAL 30 DAY;

ALTER TABLE mem_profiler.stacks MODIFY TTL seen + INTERVAL 60 DAY;
