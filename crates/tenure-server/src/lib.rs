//! tenure-server
