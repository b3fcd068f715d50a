//! Names of workers, in a form that Rust and C read alike: shared, and with a NUL behind.

use std::borrow::Borrow;
use std::ffi::c_char;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use crate::status::{Code, Status};

/// A name. Cloning shares it; reads as its text.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Name {
    /// The text and a NUL; `None`: empty.
    text: Option<Arc<str>>,
}

impl Name {
    /// Shares a copy of `name`.
    pub fn new(name: &str) -> Name {
        if name.is_empty() {
            return Name::default();
        }
        let mut text = String::with_capacity(name.len() + 1);
        text.push_str(name);
        text.push('\0');
        Name { text: Some(text.into()) }
    }

    /// Whether both share one text: no more than a comparison of two addresses.
    #[inline]
    pub fn shares(&self, other: &Name) -> bool {
        match (&self.text, &other.text) {
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            _ => false,
        }
    }

    /// For C, with the NUL. A NUL inside of the name, which no handshake lets through, ends it there.
    pub fn as_ptr(&self) -> *const c_char {
        self.text.as_ref().map_or(c"".as_ptr(), |text| text.as_ptr().cast())
    }
}

impl Deref for Name {
    type Target = str;
    fn deref(&self) -> &str {
        self.text.as_ref().map_or("", |text| &text[..text.len() - 1])
    }
}

impl From<&str> for Name {
    fn from(name: &str) -> Name {
        Name::new(name)
    }
}

// Both as the text, so that a map finds a name by it.
impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        self
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl PartialEq<str> for Name {
    #[inline]
    fn eq(&self, other: &str) -> bool {
        // As bytes, which may be cut anywhere.
        let Some(text) = &self.text else { return other.is_empty() };
        let text = text.as_bytes();
        text.len() == other.len() + 1 && text[..other.len()] == *other.as_bytes()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// What is wrong with the name of a peer, beside its length.
#[cold]
pub fn wrong(name: &str) -> Option<Status> {
    let control = name.chars().find(|c| c.is_control())?;
    Some(Status::invalid(text!("name with control character {control:?}; allowed are all others")))
}

/// There is no peer of this name, or can be none.
#[cold]
pub fn unknown(name: &str) -> Status {
    wrong(name).unwrap_or_else(|| {
        Status::new(Code::NotFound, text!("peer '{name}' is not known; add it first"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::ffi::CStr;

    #[test]
    fn reads_alike_in_rust_and_c() {
        let name = Name::new("worker:0");
        assert_eq!((&*name, name.to_string()), ("worker:0", "worker:0".to_owned()));
        // SAFETY: `name` lives, and ends with a NUL.
        assert_eq!(unsafe { CStr::from_ptr(name.as_ptr()) }, c"worker:0");
        assert_eq!(&*Name::new(""), "");
        // SAFETY: a static text.
        assert_eq!(unsafe { CStr::from_ptr(Name::default().as_ptr()) }, c"");
        assert!(Name::new("a") == *"a" && Name::new("a") != *"b" && Name::new("") == *"");
        assert!(name.shares(&name.clone()) && !name.shares(&Name::new("worker:0")));
        let map = HashMap::from([(name, 1)]);
        assert_eq!(map.get("worker:0"), Some(&1));
    }
}
