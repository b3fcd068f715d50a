//! Holds `include/rdma_transport.h` to its sources: generates it and compares every byte.
//!
//! After a change of the ABI: `UPDATE_HEADER=1 cargo test --test header`.

use std::path::Path;

/// The sources of the header, in the order of the header.
const SOURCES: &[&str] = &[
    "types/base",
    "types/manager",
    "types/rendezvous",
    "types/observe",
    "types/memory",
    "types/peers",
    "types/messages",
    "types/keys",
    "types/store",
    "types/mesh",
    "handle",
    "base",
    "options",
    "manager",
    "peers",
    "progress",
    "memory",
    "pool",
    "rendezvous",
    "messages",
    "message_claims",
    "message_ends",
    "message_more",
    "store",
    "store_calls",
    "pairs",
    "unbound",
    "mesh",
    "keys",
    "source",
    "observe",
];

fn generate(root: &Path) -> String {
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml");
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(root.join(format!("src/ffi/{source}.rs")));
    }
    let mut header = Vec::new();
    builder.generate().expect("header from src/ffi").write(&mut header);
    String::from_utf8(header).expect("UTF-8")
}

#[test]
fn the_header_is_what_the_sources_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("include/rdma_transport.h");
    let header = generate(root);
    if std::env::var_os("UPDATE_HEADER").is_some() {
        std::fs::write(&path, header).expect("write the header");
        return;
    }
    let committed = std::fs::read_to_string(&path).expect("include/rdma_transport.h");
    let differs = committed
        .lines()
        .zip(header.lines())
        .enumerate()
        .find(|(_, (old, new))| old != new)
        .map(|(i, (old, new))| format!("line {}:\n- {old}\n+ {new}", i + 1));
    assert!(
        committed == header,
        "include/rdma_transport.h is not what src/ffi/ says; UPDATE_HEADER=1 cargo test --test \
         header writes it anew. First difference: {}",
        differs.unwrap_or_else(|| "its length".to_owned())
    );
}

/// A thread that ends inside a callback goes on to end where its outermost call does, through this function: see
/// `src/ffi/called.rs`. By the plain ABI that would end the process.
#[test]
fn every_exported_function_lets_a_thread_end() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut count = 0;
    for source in SOURCES {
        let path = root.join(format!("src/ffi/{source}.rs"));
        let text = std::fs::read_to_string(path).expect("a source of the header");
        for line in
            text.lines().filter(|line| line.contains("extern \"C") && line.contains(" fn rdma_"))
        {
            assert!(line.contains("extern \"C-unwind\" fn"), "{source}: {line}");
            count += 1;
        }
    }
    assert!(count > 100, "{count} functions");
}
