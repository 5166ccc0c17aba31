//! The shared-memory contract between mem-profiler's agent and its readers.
