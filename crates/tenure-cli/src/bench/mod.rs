//! `tenure bench`.
