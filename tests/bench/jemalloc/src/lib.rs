//! Nothing: the build script makes what this package is for.
