//! Lock-free, allocation-free stack unwinding from inside a malloc call.
