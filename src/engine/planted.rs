//! Bugs that are planted for the simulation. Not in the product: behind a feature that only the tests set.

/// Bugs that the simulation must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// A completion is reported twice.
    DoubleCompletion,
    /// Success is reported over wrong bytes.
    WrongBytes,
    /// A request that lost its channel is forgotten.
    NeverEnds,
    /// A send that waits for its receiver's answer is dropped with its callback.
    LosesSend,
    /// A receive is dropped with its callback.
    LosesRecv,
}

/// That a library has these bugs, for all to see: no header declares it, so `scripts/check-symbols` refuses the library.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_planted_bugs() -> usize {
    size_of::<Planted>()
}
