//! Which records of a log may be seen by those who read committed ones.

use crate::batches::Batch;
use crate::messages::Aborted;

/// The aborted transactions among what was fetched.
pub struct Transactions {
    /// Those that have not begun yet, the next one at the end.
    coming: Vec<Aborted>,
    open: Vec<i64>,
}

impl Transactions {
    pub fn new(mut aborted: Vec<Aborted>, is_committed: bool) -> Transactions {
        if !is_committed {
            aborted.clear();
        }
        aborted.sort_unstable_by_key(|aborted| std::cmp::Reverse(aborted.first_offset));
        Transactions { coming: aborted, open: Vec::new() }
    }

    /// Return whether a batch has records that may be seen; each batch is asked about once, in order.
    pub fn are_visible(&mut self, batch: &Batch) -> bool {
        while let Some(aborted) = self.coming.pop_if(|aborted| aborted.first_offset <= batch.last) {
            self.open.push(aborted.producer);
        }
        if batch.is_control() {
            if batch.is_abort() {
                self.open.retain(|producer| *producer != batch.producer);
            }
            return false;
        }
        !(batch.is_transactional() && self.open.contains(&batch.producer))
    }
}
