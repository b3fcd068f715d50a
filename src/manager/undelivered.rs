//! Whether what was sent has reached its receivers, for a manager that ends.

use std::time::Duration;

use super::core::Core;

/// What of all that was sent has not been delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undelivered {
    Nothing,
    /// No more than what is offered to peers, which would have to receive it.
    Offers,
    /// No more than what has stood still for so long that it is given up, whatever comes and goes on other connections.
    Stuck,
    Something,
}

impl Core {
    /// What of all that was sent would be lost if the connections ended. What has not moved for `stall` is stuck.
    pub fn undelivered(&mut self, stall: Duration) -> Undelivered {
        // Each is asked, so that their acknowledgements come side by side.
        let (mut waiting, mut stuck) = (0, 0);
        for adapter in self.world.adapters.iter_mut().flatten() {
            if !adapter.has_delivered() {
                waiting += 1;
                stuck += u32::from(adapter.has_stalled(stall));
            }
        }
        // Of a send in buffered mode nobody hears but that it has ended, which it did in its call.
        let buffered = self.engine.message_buffered();
        match waiting == stuck && !self.engine.has_pending() {
            true if buffered == 0 && waiting == 0 => Undelivered::Nothing,
            true if buffered == 0 => Undelivered::Stuck,
            true if waiting == 0 && self.engine.message_buffered_is_offered() => {
                Undelivered::Offers
            }
            _ => Undelivered::Something,
        }
    }

    /// A number that changes whenever content moves on a connection; of offers, whenever some is received: signs of life are content, too.
    pub fn progress(&self, left: Undelivered) -> u64 {
        if left == Undelivered::Offers {
            return self.engine.message_buffered();
        }
        let adapters = &self.world.adapters;
        let marks = self.world.connections.iter().map(|(_, connection)| {
            adapters[connection.ep.0 as usize]
                .as_ref()
                .map_or(0, |a| a.progress_mark(connection.ep.1))
        });
        marks.fold(self.engine.message_buffered(), u64::wrapping_add)
    }
}
