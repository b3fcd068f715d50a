//! Values that are counted with: decimal numbers of 64 bits, as text.

use crate::shown;
use crate::status::{Code, Status};

/// The number in a value that is counted with.
pub(crate) fn number(value: &[u8]) -> Result<i64, Status> {
    let text = std::str::from_utf8(value).ok().filter(|text| text.len() <= 20);
    // As every kind writes it: neither "+5" nor "007".
    let number = text.and_then(|text| text.parse().ok().filter(|n: &i64| n.to_string() == text));
    number.ok_or_else(|| {
        let text = text!(
            "the value '{}' is not a decimal number of 64 bits",
            shown::key(&value[..value.len().min(64)])
        );
        Status::new(Code::FailedPrecondition, text)
    })
}

/// The sum of a counter and what is added.
pub(crate) fn sum(value: Option<&[u8]>, delta: i64) -> Result<i64, Status> {
    let before = value.map_or(Ok(0), number)?;
    before.checked_add(delta).ok_or_else(|| {
        let text = text!("{before} + {delta} does not fit into 64 bits");
        Status::new(Code::OutOfRange, text)
    })
}
