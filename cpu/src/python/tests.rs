//! Tests on a real interpreter.
