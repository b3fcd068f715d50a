//! The transfer layer: moves one content between the two ends of a channel. It knows no key, step, tag or slot: an end
//! bears its front end's part (`Named`), of which nothing is read here but its number for the application, whether there is a name, and how errors and traces write it.
//!
//! `inbound` is the receiving end, a request; `outbound` the sending end, a response. `protocols/` has a file for
//! each way that content goes, [`table`] their names, numbers and conditions, [`choose`] the choice, [`sizes`] by what long messages are cut. What all of them
//! share is here once: `buffers` (memory that lasts beyond a transfer), `landing` (memory for the result), `staging` (copies and checksums before and after),
//! `cancel` (who gives up, and until when memory may still be touched), `ending` (the one end of each).

pub(super) mod buffers;
mod cancel;
pub mod choose;
pub(super) mod ending;
pub(super) mod inbound;
mod landing;
pub(super) mod outbound;
mod protocols;
pub mod sizes;
mod staging;
pub mod table;
