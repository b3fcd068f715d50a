//! What is in the file, and when.

use serde_json::Value;

use super::recorder::BUFFERED;
use super::*;

fn read(path: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    serde_json::from_str::<Value>(&text).unwrap().as_array().unwrap().clone()
}

fn path(name: &str) -> String {
    let dir = std::env::temp_dir();
    dir.join(format!("rdma-trace-{}-{name}", std::process::id())).to_str().unwrap().to_owned()
}

#[test]
fn events_reach_the_file() {
    let path = path("events-%n.json");
    let trace = Trace::new();
    assert!(!trace.enabled());
    trace.span("before", "test", Instant::now(), &Args::default());
    trace.start(&path, "a/b").unwrap();
    let again = trace.start(&path, "a/b").unwrap_err();
    assert_eq!(again.code, Code::FailedPrecondition);
    let start = Instant::now();
    trace.span("copy", "memory", start, &Args { bytes: 7, ..Args::default() });
    let args = Args {
        peer: "w\"1",
        key: b"k\xff;\"",
        step: -3,
        bytes: 4096,
        provider: "shm",
        protocol: "eager",
        code: Some(Code::Ok),
        by: "",
    };
    trace.transfer("recv", "transfer", start, 9, &args);
    trace.stop().unwrap();
    assert_eq!(trace.stop().unwrap_err().code, Code::FailedPrecondition);
    trace.span("after", "test", Instant::now(), &Args::default());

    let path = path.replace("%n", "a-b");
    let events = read(&path);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(events.len(), 4);
    assert_eq!(events[0]["args"]["name"], "a/b");
    assert_eq!((&events[1]["ph"], &events[1]["name"]), (&"X".into(), &"copy".into()));
    assert_eq!(events[1]["args"], serde_json::json!({"bytes": 7}));
    assert!(events[1]["dur"].as_f64().unwrap() >= 0.0);
    assert_eq!((&events[2]["ph"], &events[3]["ph"]), (&"b".into(), &"e".into()));
    assert_eq!(events[2]["id"], events[3]["id"]);
    assert!(events[3]["ts"].as_f64().unwrap() >= events[2]["ts"].as_f64().unwrap());
    let args = &events[2]["args"];
    assert_eq!((&args["peer"], &args["step"]), (&"w\"1".into(), &(-3).into()));
    assert_eq!((&args["key"], &args["code"]), (&"k\\xff;\\\"".into(), &"OK".into()));
}

#[test]
fn r26_spans_are_named_by_key_and_say_who_waited() {
    let path = path("explains.json");
    let trace = Trace::new();
    trace.looked(0);
    assert!(trace.sleeps().is_none(), "costs nothing while off");
    trace.asked(1, "w", b"k", 1);
    trace.start(&path, "w").unwrap();
    trace.looked(0);
    trace.looked(0);
    trace.looked(3); // a spin ends
    trace.looked(1);
    trace.looked(0);
    let since = trace.sleeps(); // another one does
    trace.slept(since, "adapter tcp");
    trace.asked(7, "worker", b"layer/w\xff", 3);
    trace.answered(7, Code::NotFound);
    trace.answered(7, Code::Ok);
    trace.answered(1, Code::Ok);
    let start = Instant::now();
    let args = Args { peer: "worker", key: b"layer/w", step: 3, ..Args::default() };
    trace.transfer("recv", "transfer", start, 9, &args);
    trace.stop().unwrap();
    let events = read(&path);
    std::fs::remove_file(&path).unwrap();
    let names: Vec<&str> = events[1..].iter().map(|e| e["name"].as_str().unwrap()).collect();
    let source = "source layer/w\\xff";
    assert_eq!(names, ["spin", "spin", "sleep", source, source, "recv layer/w", "recv layer/w"]);
    assert_eq!(events[3]["args"]["by"], "adapter tcp");
    assert_eq!(events[4]["args"]["code"], "NOT_FOUND");
    assert_eq!(events[4]["args"]["peer"], "worker");
}

#[test]
fn the_file_is_complete_json_before_it_is_stopped() {
    let path = path("unstopped.json");
    let trace = Trace::new();
    trace.start(&path, "w").unwrap();
    assert_eq!(read(&path).len(), 1);
    for _ in 0..2 * BUFFERED + 5 {
        trace.span("turn", "test", Instant::now(), &Args::default());
    }
    assert_eq!(read(&path).len(), 1 + 2 * BUFFERED, "full buffers are written");
    drop(trace);
    assert_eq!(read(&path).len(), 1 + 2 * BUFFERED + 5, "the rest at the end");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_file_that_cannot_be_written_is_an_error() {
    let trace = Trace::new();
    let err = trace.start("/nonexistent/dir/t.json", "w").unwrap_err();
    assert_eq!(err.code, Code::NotFound);
    assert!(err.message.contains("/nonexistent/dir/t.json"));
    assert!(!trace.enabled());
}

/// Two managers of a process, or two processes, to which one path was given.
#[test]
fn a_file_that_another_trace_writes_is_refused() {
    let path = path("shared.json");
    let (first, second) = (Trace::new(), Trace::new());
    first.start(&path, "first").unwrap();
    first.span("turn", "test", Instant::now(), &Args::default());
    let refused = second.start(&path, "second").unwrap_err();
    assert_eq!(refused.code, Code::FailedPrecondition);
    assert!(refused.message.contains(&path) && refused.message.contains("%n"), "{refused}");
    assert!(!second.enabled());
    first.stop().unwrap();
    assert_eq!(read(&path).len(), 2, "it is whole");
    // Nobody writes it now.
    second.start(&path, "second").unwrap();
    drop(second);
    assert_eq!(read(&path).len(), 1, "it is emptied");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_full_disk_ends_the_trace_only() {
    let trace = Trace::new();
    if trace.start("/dev/full", "w").is_err() {
        return; // the first bytes are refused already
    }
    for _ in 0..BUFFERED {
        trace.span("turn", "test", Instant::now(), &Args::default());
    }
    assert!(!trace.enabled());
}

/// A file that can grow no further is complete up to what had room, and who stops the trace hears of it.
#[test]
fn a_file_that_is_full_stays_complete() {
    const CHILD: &str = "RDMA_TEST_OF_A_FULL_FILE";
    let path = path("full.json");
    if std::env::var_os(CHILD).is_none() {
        // The limit is a process's, and would be other tests', too.
        let test = "observe::trace::tests::a_file_that_is_full_stays_complete";
        let done = std::process::Command::new("/proc/self/exe")
            .args(["--exact", test, "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        return;
    }
    let most = libc::rlimit { rlim_cur: 20_000, rlim_max: 20_000 };
    // SAFETY: a valid struct.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const most) }, 0);
    for at_the_end in [true, false] {
        let trace = Trace::new();
        trace.start(&path, "m").unwrap();
        let before = if at_the_end { BUFFERED / 2 } else { BUFFERED + 1 };
        (0..before).for_each(|_| trace.span("x", "test", Instant::now(), &Args::default()));
        assert_eq!(trace.enabled(), at_the_end);
        let full = trace.stop().unwrap_err();
        assert!(format!("{full}").contains("full.json"), "{full}");
        assert_ne!(full.code, Code::FailedPrecondition);
        assert_eq!(trace.stop().unwrap_err().code, Code::FailedPrecondition, "told once");
        assert_eq!(read(&path).len(), 1, "what it began with");
    }
    std::fs::remove_file(&path).unwrap();
}

/// What a process that dies leaves is a second old at most, while events come.
#[test]
fn events_reach_the_file_each_second() {
    let path = path("seconds.json");
    let trace = Trace::new();
    trace.start(&path, "m").unwrap();
    let event = || trace.span("x", "test", Instant::now(), &Args::default());
    event();
    assert_eq!(read(&path).len(), 1);
    std::thread::sleep(std::time::Duration::from_millis(1050));
    event();
    assert_eq!(read(&path).len(), 3);
    trace.stop().unwrap();
    std::fs::remove_file(&path).unwrap();
}
