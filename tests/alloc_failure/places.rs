//! Where the library may abort for want of memory.

/// Places in one file.
pub struct Place {
    /// The file, in `src`.
    pub file: &'static str,
    /// Its functions.
    pub functions: &'static [&'static str],
    /// What it is.
    pub what: &'static str,
    /// Bytes at most.
    pub bytes: usize,
}

/// Instead of a file: a text is put together, wherever.
pub const TEXTS: &str = "(texts)";

const fn place(
    file: &'static str,
    bytes: usize,
    what: &'static str,
    functions: &'static [&'static str],
) -> Place {
    Place { file, functions, what, bytes }
}

/// All of them.
pub const PLACES: &[Place] = &[place(TEXTS, 4096, "texts of errors and of the log", &[""])];

/// The place of a function.
pub fn of(file: &str, function: &str) -> Option<&'static Place> {
    PLACES.iter().find(|p| p.file == file && p.functions.contains(&function))
}

/// The table as it stands in the documents.
pub fn table() -> String {
    let mut text =
        String::from("| File | Functions | What | Bytes, at most |\n|---|---|---|---|\n");
    for p in PLACES {
        let functions: Vec<String> =
            p.functions.iter().filter(|f| !f.is_empty()).map(|f| format!("`{f}`")).collect();
        text.push_str(&format!(
            "| {} | {} | {} | {} |\n",
            p.file,
            functions.join(", "),
            p.what,
            p.bytes
        ));
    }
    text
}
