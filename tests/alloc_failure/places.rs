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
/// Instead of a file: a thread begins, in the standard library, before it runs anything of ours.
pub const BEGINNINGS: &str = "(threads)";

const fn place(
    file: &'static str,
    bytes: usize,
    what: &'static str,
    functions: &'static [&'static str],
) -> Place {
    Place { file, functions, what, bytes }
}

/// All of them.
pub const PLACES: &[Place] = &[
    place(
        TEXTS,
        1024,
        "texts of the log and of settings, wherever they are put together; those of errors are cut",
        &[""],
    ),
    place(BEGINNINGS, 1024, "a thread that begins: its name, and what guards its stack", &[""]),
    place(
        "bootstrap/addr.rs",
        64,
        "addresses of this host and of a peer",
        &["get_all", "reachable", "resolve"],
    ),
    place("bootstrap/blob.rs", 256, "an exported address", &["content", "dial_order"]),
    place(
        "bootstrap/choice.rs",
        1024,
        "why a provider does not do",
        &["choose", "objection", "reason"],
    ),
    place("bootstrap/conn.rs", 256, "a handshake: its frames", &["finish"]),
    place(
        "bootstrap/endpoint.rs",
        2048,
        "a handshake: addresses of endpoints",
        &["answered", "follow", "send"],
    ),
    place("bootstrap/engine.rs", 2048, "handshakes, and what they say", &["blob", "poll", "step"]),
    place(
        "bootstrap/engine/dial.rs",
        2048,
        "a dial, and its handshake",
        &["dial", "dial_for", "start_dial"],
    ),
    place(
        "bootstrap/engine/listen.rs",
        2048,
        "a listener, and the handshakes that come in",
        &["admit", "bind", "listen_on", "refresh_addresses"],
    ),
    place(
        "bootstrap/frame.rs",
        1024,
        "a handshake: its frames and names",
        &["build", "clean", "next"],
    ),
    place(
        "bootstrap/handshake.rs",
        1024,
        "a handshake: its frames",
        &["clone", "connect", "on_hello"],
    ),
    place(
        "bootstrap/hello.rs",
        512,
        "a handshake: its introduction",
        &["decode", "new", "offers", "put"],
    ),
    place("bootstrap/identity.rs", 256, "why a provider does not do", &["lacks"]),
    place("bootstrap/mod.rs", 256, "a handshake: who this is", &["clone"]),
    place("config.rs", 1024, "the sizes of a manager", &["default"]),
    place("engine/channel.rs", 256, "headers of messages", &["new", "return_credits"]),
    place("engine/channel/send.rs", 256, "headers of messages", &["send_fragments"]),
    place("engine/deadlines.rs", 2048, "the table of deadlines", &["new"]),
    place(
        "engine/front/message/layouts.rs",
        256,
        "a layout; a header of a message, of which long ones are no part",
        &["copy", "of_user", "of_short", "place_parts", "share_layout"],
    ),
    place("engine/front/message/room.rs", 64, "who waits for room", &["message_on_room"]),
    place("engine/known.rs", 256, "a peer; an entry of its cache", &["insert", "new", "put"]),
    place("engine/mod.rs", 2048, "the engine", &["new"]),
    place("engine/rails.rs", 64, "a rail", &["rail_new"]),
    place("engine/transfer/protocols/legs.rs", 64, "a transfer in several parts", &["begin_legs"]),
    place(
        "engine/transfer/protocols/stripes.rs",
        4096,
        "stripes of a transfer; the transfers of a rail that ended",
        &["stripes", "write_stripes_anew"],
    ),
    place(
        "fabric/loopback/hub.rs",
        2048,
        "an endpoint, an adapter, and where they are found",
        &["add_end", "address", "new", "prefix"],
    ),
    place("fabric/loopback/mod.rs", 64, "an endpoint", &["create"]),
    place("fabric/mod.rs", 2048, "an adapter", &["open"]),
    place(
        "fabric/moves.rs",
        512,
        "a copy that runs, of which each thread makes one",
        &["new", "send"],
    ),
    place("fabric/regions.rs", 64, "a table of regions", &["default"]),
    place("fabric/shm/adapter.rs", 128, "an endpoint", &["create"]),
    place(
        "fabric/shm/foreign.rs",
        1024,
        "the thread that closes what strangers sent; who waits for it",
        &["give", "rest", "run"],
    ),
    place("fabric/shm/handshake.rs", 2048, "a connection", &["dial", "hear_welcome", "welcome"]),
    place("fabric/shm/mod.rs", 128, "an adapter", &["open"]),
    place(
        "fabric/shm/nest.rs",
        128,
        "paths of sockets",
        &["candidates", "dial_in", "file_name", "open_in", "sweep"],
    ),
    place("fabric/shm/pools.rs", 64, "a segment of a peer's pool", &["add"]),
    place("fabric/shm/ring.rs", 64, "a ring", &["new"]),
    place("fabric/shm/ring/inbox.rs", 64, "where messages come in", &["new"]),
    place("fabric/shm/stream.rs", 64, "a stream segment", &["open"]),
    place("fabric/shm/sys.rs", 512, "a descriptor's path", &["is_eventfd"]),
    place("fabric/shm/wire.rs", 256, "an address", &["encode"]),
    place("fabric/tcp/adapter.rs", 64, "an adapter; an endpoint", &["address", "connect", "open"]),
    place(
        "fabric/tcp/left.rs",
        64,
        "the handle of a piece of input or output",
        &["input_moved", "set_aside", "take_input", "take_output"],
    ),
    place("fabric/tcp/stream.rs", 64, "an endpoint", &["new"]),
    place(
        "ffi/message_more.rs",
        64,
        "a handler; who is told of room",
        &["handler", "rdma_msg_on_room"],
    ),
    place(
        "ffi/store.rs",
        1024,
        "a store, but for what is in it; room for connections of a client that rest",
        &["rdma_store_file", "rdma_store_memory", "rdma_store_tcp", "rdma_store_tcp_serve"],
    ),
    place("log/speaker.rs", 512, "a manager's name", &["new"]),
    place(
        "manager/lent.rs",
        512,
        "queues of callbacks of a manager; a callback that is to run",
        &["default", "new", "place", "push"],
    ),
    place("manager/memory.rs", 4096, "a node of the map of registered memory", &["add"]),
    place(
        "manager/messages.rs",
        256,
        "who waits for the end of buffered mode",
        &["message_detach"],
    ),
    place("manager/messages/what.rs", 256, "a layout of a prepared operation", &["shared"]),
    place("manager/mod.rs", 4096, "a manager", &["open", "open_core", "start"]),
    place("manager/offers.rs", 4096, "a manager", &["open_adapters"]),
    place("manager/peers.rs", 64, "an imported address", &["import_address"]),
    place(
        "manager/unbound.rs",
        256,
        "an unbound buffer; who waits for its end",
        &["unbound_create", "unbound_destroy"],
    ),
    place(
        "memory/pool.rs",
        1024,
        "the pool, and its segments",
        &["alloc", "default", "grow", "new", "segments"],
    ),
    place("memory/pool/ranges.rs", 256, "nodes of the maps of free memory", &["insert", "new"]),
    place(
        "mesh.rs",
        64,
        "a key of a rank: the session and the rank's number",
        &["clear", "follow", "hear", "keep_own", "key", "lead", "rank_keys"],
    ),
    place("name.rs", 512, "the name of a peer", &["new"]),
    place("observe/mod.rs", 2048, "counters of a peer", &["new", "peer"]),
    place("os/environment.rs", 4096, "a variable of the environment", &["variable"]),
    place("os/mod.rs", 256, "a new thread", &["spawn", "spawn_by", "spawn_small"]),
    place("os/own_thread.rs", 4096, "what parking_lot keeps for all threads that wait", &["begin"]),
    place("room.rs", 256, "the text of an error of the system", &["said"]),
    place("status.rs", 64, "an error, but for its text", &["deref_mut", "new"]),
    place(
        "store/file/mod.rs",
        4096,
        "a path, which the standard library copies; a number as text; names of a lease and of a new file",
        &[
            "add",
            "delete",
            "drop_leased",
            "is_there",
            "lasts",
            "lease",
            "lock",
            "lock_file",
            "open",
            "put",
            "release",
            "sweep",
            "ttl_of",
            "unless_gone",
        ],
    ),
    place(
        "store/file/value.rs",
        4096,
        "a path, which the standard library copies; a file's name; the ttl of a lease",
        &["file_name", "open_file", "open_lease"],
    ),
    place("store/idle.rs", 512, "room for connections of a client that rest", &["new"]),
    place("store/lease.rs", 128, "a lease", &["begin"]),
    place(
        "store/memory.rs",
        512,
        "a store in memory; a number as text; the end of a lease",
        &["add", "lease", "new"],
    ),
    place("store/mod.rs", 64, "a view, and its lease", &["leased", "lent", "new", "view"]),
    place(
        "store/mod.rs",
        4096,
        "missing keys in the text of an error, which names 8, cut where they are long",
        &["absent", "named"],
    ),
    place("store/names.rs", 128, "a look-up of a server's name", &["asked"]),
    place("store/number.rs", 32, "a number as text", &["number"]),
    place("store/tcp/server.rs", 512, "a served store", &["start"]),
    place("store/tcp/session.rs", 64, "a greeting", &["on_message"]),
    place("store/tcp/wire.rs", 64, "a greeting; a proof", &["greeting", "proof"]),
    place("user.rs", 64, "user bytes of a tensor", &["copy"]),
    place("wire.rs", 1024, "a frame of a handshake", &["bytes"]),
];

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
