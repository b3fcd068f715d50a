//! Scenarios of the engine, each by name: two engines, and a wire on which nothing moves but by the script.
//!
//! The seeded simulation (`tests/simulation.rs`) meets most of this sooner or later; a scenario says what
//! happens, one state and one event at a time. `SCENARIO_TRACE=1` prints what passes.

// Each of the two test binaries uses a part of what they share.
#![allow(dead_code)]

#[path = "world/mod.rs"]
mod common;
#[path = "scenarios/early_ends.rs"]
mod early_ends;
#[path = "scenarios/engine.rs"]
mod engine;
#[path = "scenarios/finish.rs"]
mod finish;
#[path = "scenarios/kind.rs"]
mod kind;
#[path = "scenarios/late.rs"]
mod late;
#[path = "scenarios/metadata.rs"]
mod metadata;
#[path = "scenarios/ops.rs"]
mod ops;
#[path = "scenarios/responses.rs"]
mod responses;
#[path = "scenarios/script.rs"]
mod script;
#[path = "scenarios/stage.rs"]
mod stage;
#[path = "scenarios/transfers.rs"]
mod transfers;
#[path = "scenarios/wire.rs"]
mod wire;

type World = common::World<script::Script>;
