//! Heap profiles as data, and the dump formats they are read from and written to.
