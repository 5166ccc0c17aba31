-- Tables for the profiles of a fleet, filled by `mem_parser --clickhouse`:
--
--   clickhouse-client --queries-file schema.sql
--   mem_parser x.heap --clickhouse --label service=checkout --label host=web-17 |
--       clickhouse-client --query 'INSERT INTO mem_profiler.rows FORMAT TSV'
--
-- Rows go into `rows`, which keeps nothing: two views split them into samples, a few bytes each,
-- and stacks, each once for the whole fleet. A dump that is read in twice counts once, after
-- merges or with FINAL: `held` and `named`, which the queries read, have it. Nothing expires by itself: retention.sql
-- sets how long things are kept.

CREATE DATABASE IF NOT EXISTS mem_profiler;

CREATE TABLE IF NOT EXISTS mem_profiler.rows
(
    service LowCardinality(String),
    host LowCardinality(String),
    process LowCardinality(String),
    pid UInt32,
    build_id LowCardinality(String),           -- of the program
    start DateTime64(3, 'UTC'),
    time DateTime64(3, 'UTC'),                 -- when the values were true
    labels Map(LowCardinality(String), LowCardinality(String)),
    type LowCardinality(String),               -- inuse_space, alloc_objects, cpu, ...
    unit LowCardinality(String),
    stack UInt64,                              -- hash of (object, offset) of the frames
    value Int64,
    objects Array(LowCardinality(String)),     -- build id, or path, of each frame, leaf first
    offsets Array(UInt64),                     -- in that file
    modules Array(LowCardinality(String)),     -- its path on the machine
    functions Array(String),                   -- with inlined ones, '' where there is no symbol
    lines Array(String)                        -- 'file:line', '' if unknown
)
ENGINE = Null;

-- Ordered by stack within an hour: equal stacks of many hosts stand together, and compress to a
-- few bytes each, and a query of one service and some hours reads little more than it needs.
CREATE TABLE IF NOT EXISTS mem_profiler.samples
(
    service LowCardinality(String),
    type LowCardinality(String),
    time DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    start DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    stack UInt64 CODEC(Delta, ZSTD(1)),
    host LowCardinality(String) CODEC(ZSTD(1)),
    process LowCardinality(String) CODEC(ZSTD(1)),
    pid UInt32 CODEC(ZSTD(1)),
    build_id LowCardinality(String) CODEC(ZSTD(1)),
    labels Map(LowCardinality(String), LowCardinality(String)) CODEC(ZSTD(1)),
    unit LowCardinality(String) CODEC(ZSTD(1)),
    value Int64 CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree
PARTITION BY toDate(time)
ORDER BY (service, type, toStartOfHour(time), stack, host, pid, time);

CREATE TABLE IF NOT EXISTS mem_profiler.stacks
(
    stack UInt64,
    objects Array(LowCardinality(String)) CODEC(ZSTD(3)),
    offsets Array(UInt64) CODEC(ZSTD(3)),
    modules Array(LowCardinality(String)) CODEC(ZSTD(3)),
    functions Array(String) CODEC(ZSTD(3)),
    lines Array(String) CODEC(ZSTD(3)),
    seen DateTime('UTC'),
    -- Of equal stacks the one with most names stays, of those the latest.
    quality UInt64
)
ENGINE = ReplacingMergeTree(quality)
ORDER BY stack;

CREATE MATERIALIZED VIEW IF NOT EXISTS mem_profiler.rows_to_samples TO mem_profiler.samples AS
SELECT service, type, time, start, stack, host, process, pid, build_id, labels, unit, value
FROM mem_profiler.rows;

CREATE MATERIALIZED VIEW IF NOT EXISTS mem_profiler.rows_to_stacks TO mem_profiler.stacks AS
SELECT stack, objects, offsets, modules, functions, lines, toDateTime(time, 'UTC') AS seen,
       bitShiftLeft(toUInt64(countEqual(functions, '') = 0), 62)
           + bitShiftLeft(length(functions) - countEqual(functions, ''), 32)
           + toUnixTimestamp(time) AS quality
FROM mem_profiler.rows
WHERE notEmpty(objects);

-- What was live: the samples that most questions are about, each once.
CREATE VIEW IF NOT EXISTS mem_profiler.held AS
SELECT * FROM mem_profiler.samples FINAL WHERE type = 'inuse_space';

-- The frames of each stack, once: those with most names.
CREATE VIEW IF NOT EXISTS mem_profiler.named AS
SELECT * FROM mem_profiler.stacks FINAL;
