//! Memory that peers reach.

pub mod pool;
