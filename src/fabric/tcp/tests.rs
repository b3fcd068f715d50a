//! Malformed and random input.

use super::*;
