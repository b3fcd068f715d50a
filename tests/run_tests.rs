//! `scripts/run-tests` over stages made for it: what it counts, and that it always ends with its total.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One test at a time: a child that another begins while a script is written has it open for writing until it runs something
/// else, and nobody can run the script meanwhile (ETXTBSY).
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder with the script and these stages.
fn folder(name: &str, stages: &[(&str, &str)]) -> PathBuf {
    let root = std::env::temp_dir().join(format!("run-tests-{name}-{}", std::process::id()));
    let scripts = root.join("scripts");
    fs::create_dir_all(&scripts).expect("folder");
    let original = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/run-tests");
    fs::copy(original, scripts.join("run-tests")).expect("script");
    for (stage, body) in stages {
        let path = scripts.join(format!("stage-{stage}"));
        fs::write(&path, format!("#!/bin/bash\n{body}\n")).expect("stage");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("mode");
    }
    root
}

/// Its output and whether it was content.
fn run(root: &Path, env: &[(&str, &str)], stages: &[&str]) -> (String, bool) {
    let mut command = Command::new("scripts/run-tests");
    command.current_dir(root).args(stages).env_remove("CI").env_remove("BUILD");
    command.envs(env.iter().copied());
    let out = command.output().expect("run");
    let text = String::from_utf8(out.stdout).expect("text");
    (text + &String::from_utf8_lossy(&out.stderr), out.status.success())
}

/// As the tests say it that want a device.
const DEVICE: &str = "no RDMA device here; runs in \\`make softroce\\`";

#[test]
fn r28_skips_that_run_elsewhere_are_counted_apart() {
    let _alone = alone();
    let rust = format!(
        "echo 'SKIPPED c.case: the progress thread drives'\n\
         echo \"SKIPPED ibverbs::walk: {DEVICE}\"\necho \"SKIPPED ibverbs::never: {DEVICE}\"\n\
         echo '7 passed, 0 failed, 3 skipped'"
    );
    // It ends later than the other stage, and runs one of the two.
    let machine = "# lane: machine\nsleep 2; echo 'test ibverbs::walk ... ok' >build/logs/softroce-machine.log\n\
                   echo '1 passed, 0 failed, 0 skipped'";
    let root = folder("skips", &[("rust", &rust), ("softroce", machine)]);
    let (text, good) = run(&root, &[], &["rust", "softroce"]);
    assert!(good, "{text}");
    assert!(text.ends_with("\n8 passed, 0 failed, 1 skipped\n"), "{text}");
    assert!(text.contains("\n  ibverbs::never: no RDMA device here"), "{text}");
    assert!(!text.contains("\n  ibverbs::walk: "), "{text}");
    // Where everything has to run, a real skip is a failure.
    let (text, good) = run(&root, &[("CI", "1")], &["rust", "softroce"]);
    assert!(!good && text.ends_with("\n8 passed, 1 failed, 1 skipped\n"), "{text}");
    // Without the machine, nothing ran there.
    let (text, _) = run(&root, &[], &["rust"]);
    assert!(text.ends_with("\n7 passed, 0 failed, 2 skipped\n"), "{text}");
    fs::remove_dir_all(root).expect("remove");
}

#[test]
fn r28_a_stage_that_never_ends_is_ended_and_counted() {
    let _alone = alone();
    let stages =
        [("one", "echo '1 passed, 0 failed, 0 skipped'"), ("two", "echo begun; sleep 600")];
    let root = folder("ends", &stages);
    let (text, good) = run(&root, &[("TEST_MINUTES", "0")], &["one", "two"]);
    assert!(!good && text.contains("'two' was not done after 0 minutes"), "{text}");
    assert!(text.lines().last().is_some_and(|l| l.ends_with(" failed, 0 skipped")), "{text}");
    // A stage that fails without a count fails; one that is misspelt is no success either.
    let root2 = folder("fails", &[("three", "echo in its own words; exit 3")]);
    let (text, good) = run(&root2, &[], &["three"]);
    assert!(!good && text.ends_with("\n0 passed, 1 failed, 0 skipped\n"), "{text}");
    // Whatever it said is said again at the end, where a long log is not cut off.
    assert!(text.contains("==== three: what failed\nin its own words\n"), "{text}");
    assert!(!run(&root2, &[], &["thre"]).1);
    for root in [root, root2] {
        fs::remove_dir_all(root).expect("remove");
    }
}
