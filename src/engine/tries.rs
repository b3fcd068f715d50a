//! What the tries to connect to a peer met, for the error of who waited in vain.

/// Different ends that are kept word for word; the first and the latest.
const KEPT: usize = 4;

/// Counts tries and keeps what they met: as many as it takes to explain, bounded whatever happens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tries {
    total: u64,
    /// Texts, each with the number of tries in a row that met it.
    met: Vec<(String, u64)>,
    /// Tries whose texts were dropped.
    dropped: u64,
}

impl Tries {
    /// Another try ended so.
    pub fn add(&mut self, text: &str) {
        self.total += 1;
        match self.met.last_mut() {
            Some((last, n)) if last == text => *n += 1,
            _ => self.met.push((text.to_owned(), 1)),
        }
        if self.met.len() > KEPT {
            self.dropped += self.met.remove(1).1;
        }
    }

    /// No try has ended yet.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// All of it in a line.
    pub fn text(&self) -> String {
        match &self.met[..] {
            [] => "no try to connect has ended yet".to_owned(),
            [(only, 1)] => only.clone(),
            [(only, n)] => text!("{only}, in each of {n} tries"),
            all => {
                let mut parts: Vec<String> = all
                    .iter()
                    .map(
                        |(text, n)| {
                            if *n == 1 { text.clone() } else { text!("{text} ({n} times)") }
                        },
                    )
                    .collect();
                if self.dropped > 0 {
                    parts.insert(1, format!("… {} others …", self.dropped));
                }
                format!("{} tries: {}", self.total, parts.join(", then "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Tries;

    #[test]
    fn r06_tries_are_told_and_bounded() {
        let mut t = Tries::default();
        assert!(t.is_empty() && t.text().contains("no try"));
        t.add("refused");
        assert_eq!(t.text(), "refused");
        t.add("refused");
        assert_eq!(t.text(), "refused, in each of 2 tries");
        t.add("silent");
        assert_eq!(t.text(), "3 tries: refused (2 times), then silent");
        for i in 0..1000 {
            t.add(&format!("error {i}"));
        }
        let text = t.text();
        assert!(text.starts_with("1003 tries: refused (2 times), then … 998 others …"), "{text}");
        assert!(text.ends_with("error 997, then error 998, then error 999"), "{text}");
    }
}
