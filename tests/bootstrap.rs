//! Two and more bootstraps in one thread, over real sockets, with pretended endpoints.

#[path = "bootstrap/auth.rs"]
mod auth;
#[path = "bootstrap/dial.rs"]
mod dial;
#[path = "bootstrap/fake.rs"]
mod fake;
#[path = "bootstrap/garbage.rs"]
mod garbage;
#[path = "bootstrap/mutate.rs"]
mod mutate;
#[path = "bootstrap/patience.rs"]
mod patience;
#[path = "bootstrap/providers.rs"]
mod providers;
