//! Scenarios of the engine, each by name: two engines, and a wire on which nothing moves but by the script.
//!
//! The seeded simulation (`tests/simulation.rs`) meets most of this sooner or later; a scenario says what
//! happens, one state and one event at a time. `SCENARIO_TRACE=1` prints what passes.
//!
//! Each ends with `finish`: every operation has ended, once, with what the scenario says; memory was left
//! alone after that; no region is open, no buffer kept, nothing waits, in the engines' tables is nothing;
//! and each side has as many credits as the account of the wire says. Both managers then end, too.
//!
//! # A request
//!
//! Every state × what ends it early is in `early_ends`, as EVENT_while_STATE:
//!
//! | Event | Cancel, deadline, abort, cleanup, shut down | Loss | Disconnect | Reclaim (its destination is unregistered) |
//! |---|---|---|---|---|
//! | Queued | yes | no: there is no connection | yes | yes |
//! | Allocating, before it is asked for | yes | goes on, and connects again | goes on | no: it has no memory yet |
//! | Allocating, for content, for what is offered | yes | yes | yes | no: the same |
//! | Allocating, local | yes | nothing to it | nothing to it | no: the same |
//! | Requested: withheld, out, with a destination, with and without windows | yes | yes | yes | yes; none without a destination |
//! | Awaiting: written with and without windows, asked again | yes | yes | yes | yes |
//! | Reading | yes | yes | yes | yes |
//! | Copying: from a proxy, the checksum | yes | goes on: the content is there | goes on | yes |
//! | LocalWait, LocalCopy | yes | nothing to it | nothing to it | yes |
//! | Quiescing | yes: the first end holds | yes | yes | yes |
//!
//! And × what arrives for it:
//!
//! | Event | Queued, LocalWait, LocalCopy | Requested | Awaiting | Allocating, Reading, Copying, Quiescing, gone |
//! |---|---|---|---|---|
//! | content | no: nobody was asked | `eager_at_the_limit`, `eager_content_and_no_memory_for_it`, `content_that_is_too_long_from_a_peer_that_does_not_look` | no: the sender has chosen | `content_after_cancel_is_stale`, `content_twice_is_stale` |
//! | metadata | no | `get_done_ends_the_send`, `no_way_to_read_takes_two_round_trips`, `put_to_memory_given_up_front_tells_the_metadata` | no | `an_offer_while_it_is_read_is_stale`, `offer_after_the_deadline_is_stale`, `offer_twice_is_stale` |
//! | error | no | `source_has_no_such_tensor`, `proxy_exhausted_at_the_sender` | `copies_fail` | `error_after_cancel_is_stale` |
//! | the immediate, CONTENT_DONE | no | `put_with_cached_metadata` | `a_put_is_read_no_sooner_than_its_immediate`, `content_that_changed_on_its_way` | `immediate_after_cancel_is_stale` |
//! | CANCEL_ACK | no | `a_confirmation_that_nobody_waits_for` | the same | Quiescing: `cancel_crosses_the_last_write`, `nobody_confirms_that_nothing_is_written` |
//! | the end of a READ | no: none is posted | no | no | Reading: `a_read_is_refused_in_the_middle`; Quiescing: `abort_of_a_step_while_reading`, `reads_that_never_end_end_with_the_connection` |
//! | memory, or none | no | no | no | Allocating: `metadata_is_known_and_its_memory_is_not_to_be_had`, `get_done_with_failure` |
//! | the end of a copy | LocalCopy: `local_tensors` | no | no | Copying: `copies_fail`, `content_that_changed_on_its_way` |
//! | connected, not connected | `the_first_receive_connects_and_others_wait_with_it`, `a_try_that_fails_for_good_ends_what_waits` | no: it has its connection | no | no |
//!
//! # A response
//!
//! Every state × what ends it, or might, is in `responses`, as EVENT_while_STATE: Waiting, Asking, Staging (a
//! copy to a proxy, off a device, a checksum), Deferred, Told (with the source's address, without), Writing (with
//! and without windows) × cancel, loss, disconnect and shut down of either side, silence, abort, cleanup, reclaim,
//! forced reclaim. Waiting and Asking have no memory to be reclaimed; only writes have to be forced. An abort
//! or cleanup of the sender's step lets a send go on that has met its receiver. And × what arrives for it:
//!
//! | Event | Waiting, Asking | Staging, Deferred | Told | Writing | gone |
//! |---|---|---|---|---|---|
//! | its request again | `duplicate_index` | the same | the same | the same | `a_request_again_after_its_end_is_answered_to_nobody` |
//! | TENSOR_RE_REQUEST | no: its number was told to nobody | no | `no_way_to_read_takes_two_round_trips`, `grant_after_the_deadline` | `re_request_while_it_is_written_is_stale` | `re_request_for_a_response_that_is_gone` |
//! | GET_DONE | no | no | `get_done_ends_the_send`, `get_done_with_failure`, `the_destination_of_a_re_request_cannot_be_opened`; of too little room: `a_tensor_that_grew_may_fit_or_not`, `a_tensor_that_does_not_fit_goes_back_to_no_step_that_is_over` | no | `get_done_twice_is_stale` |
//! | CANCEL | in `responses`; `source_answers_while_the_cancel_is_on_its_way` | in `responses` | in `responses` | in `responses` | `a_cancel_for_a_request_that_is_gone_is_confirmed`, `cancel_crosses_content` |
//! | the tensor | `source_answers`, `a_destination_with_too_little_room_leaves_the_tensor_for_the_next` | no: it has it | no | no | `source_answers_twice`, `source_answers_after_the_channel_ended`, `source_answers_after_cancel` |
//! | the end of a copy | no | `proxies_on_both_sides`, `copies_fail`, `tensors_of_devices` | no | no | no: the copy keeps it |
//! | the end of a WRITE | no | no | no | `a_send_ends_with_the_last_of_its_writes`, `lost_after_the_last_write_and_before_its_completion` | no |
//!
//! # A message
//!
//! Each state (queued, gathering, offered, unmatched, granted, reading, writing, copying, claimed), of an eager message, a put, a get
//! and one in legs, × cancel and give up of either operation, loss, and crash, disconnect and shut down of either side is in
//! `messages_ends`, as STATE_WAY::EVENT. Seeded walks, with losses and deaths, are in `messages_walks`; the model that they are held to is
//! in `messages_model`.
//!
//! # A pipeline
//!
//! Each of its states, at both ends, with cancel, loss and failure, and what a hostile peer may send, is in `pipeline`; the seeded
//! walks of it are in `messages_walks`.
//!
//! # A persistent buffer
//!
//! Each state of a transfer by a buffer (asked for, busy, filled, written, its memory asked for, its checksum computed, emptied) ×
//! cancel, deadline, abort, cleanup, loss, disconnect, shut down, reclaim of destination and source is in `persistent_ends`,
//! as EVENT_while_STATE. And × what else happens to it:
//!
//! | Event | none, asked for | idle | busy | called back |
//! |---|---|---|---|---|
//! | a tensor | `the_first_tensor_asks_for_a_buffer_and_the_next_use_it` | the same, `metadata_that_changes_is_told_with_the_write` | `a_busy_buffer_keeps_the_next_tensor_of_its_name_waiting` | `a_buffer_that_is_called_back_while_it_is_busy_goes_when_it_is_idle` |
//! | a longer one | the same | `a_tensor_that_grew_asks_for_a_longer_buffer` | it waits | no: the buffer is a new one |
//! | no room | `what_is_longer_than_the_bound_goes_another_way`, `no_memory_for_a_buffer_is_no_error` | `the_sender_gives_up_what_it_did_not_use_for_longest` | it stays | `the_receiver_calls_back_what_was_not_used_for_longest` |
//! | a copy or a write fails | no | no | `copies_into_and_out_of_a_buffer_fail`, `a_write_to_a_buffer_that_fails_costs_the_buffer`, `a_buffer_in_which_the_content_changed_is_used_again` | no |
//! | what nobody of good will says | `buffer_response_that_was_not_asked_for_ends_the_connection`, `buffer_free_for_what_was_not_given_ends_the_connection`, `requests_for_very_long_and_very_many_buffers_are_refused` | `buffer_idle_for_what_is_not_busy_ends_the_connection`, `tensor_write_of_more_than_the_buffer_takes_ends_the_connection` | `tensor_write_to_a_busy_buffer_ends_the_connection`, `a_buffer_that_is_freed_while_it_is_emptied_stays_until_it_is` | no |
//!
//! # A channel
//!
//! | Event | not open here | open | out of credits | ended |
//! |---|---|---|---|---|
//! | messages | `messages_before_one_end_is_open`, `many_messages_before_one_end_is_open` | all others | `credits_run_out_and_come_back`, `both_sides_are_out_of_credits_at_once`, `a_quantum_of_credits_goes_back_by_itself` | no: it has no events |
//! | posts | no: it has no number | `a_send_queue_of_one` | `content_waits_for_a_credit`, `an_immediate_waits_for_a_credit`, `a_request_that_waits_for_a_credit_is_taken_back_unsent` | `after_a_loss_the_next_receive_connects_again` |
//! | fragments | no | `fragmented_request`, `fragmented_request_cancelled_half_way`, `several_regions_do_not_fit_a_message` | `fragmented_request_of_which_a_part_has_left` | `fragmented_request_lost_half_way` |
//! | what nobody of good will sends | no | `what_is_no_message_ends_the_connection`, `a_message_in_too_many_fragments_ends_the_connection`, `a_message_again_where_all_have_checksums`, `duplicate_index` | the same | no |
//! | silence | no: the handshake has its own patience | `a_quiet_peer_that_answers_is_alive`, `a_connection_that_rests_is_asked_for_a_sign_of_life_less_often`, `a_peer_that_stands_still_is_stalled`, `where_all_stood_still_nobody_is_stalled`, `where_all_stood_still_a_cancelled_receive_waits_on`, `a_peer_that_drives_itself_may_be_silent`, `content_that_moves_is_a_sign_of_life` | the same | no |
//! | loss | it opens, and ends | `channel_lost_in_a_read`, `channel_lost_in_a_write`, `only_one_end_finds_that_it_is_lost`, `lost_before_get_done`, `lost_with_everything_under_way` | `loss_while_the_request_waits_for_a_credit` | no |
//! | GOODBYE, the end of a manager | no | `goodbye_tells_both_why`, `destroy_with_everything_under_way`, `crash_with_everything_under_way` | `shut_down_while_the_request_waits_for_a_credit` | no |
//!
//! # A peer
//!
//! | Event | Idle | Connecting | Connected | Failed |
//! |---|---|---|---|---|
//! | a receive | `the_first_receive_connects_and_others_wait_with_it` | the same | `eager_at_the_limit` | `a_try_that_fails_for_good_ends_what_waits` |
//! | it connects | `messages_before_one_end_is_open` | `a_try_that_fails_while_the_peer_has_connected` | `both_connect_at_once` | `a_try_that_fails_for_good_ends_what_waits` |
//! | a try fails | no: none is under way | `a_try_that_fails_is_followed_by_another`, `a_try_that_fails_when_nothing_waits_any_more`, `the_deadline_tells_what_each_try_met` | `a_try_that_fails_while_the_peer_has_connected` | no |
//! | disconnect | `the_connection_comes_after_disconnect` | `disconnect_while_dialling` | `goodbye_tells_both_why` | nothing to it |
//! | a new incarnation | `metadata_survives_a_connection` is the old one | `what_is_queued_goes_to_the_new_incarnation`, `what_waits_for_a_connection_fails_when_another_incarnation_comes` | `peer_restarts_as_new_incarnation`, `old_incarnations_answer`, `the_receiver_restarts_while_its_request_waits`, `the_receiver_restarts_while_it_is_written_to` | no |
//! | a claim without proof | let in at once | let in at once | `a_claim_without_proof_while_the_old_one_lives`, `a_claim_without_proof_waits_until_the_old_one_is_found_dead` | let in at once |
//!
//! What is not here: bounds that take a million operations (`src/limits.rs` and the attacks of `tests/hostile`
//! have them), and everything above the engine, which has tests of managers.

// Each of the two test binaries uses a part of what they share.
#![allow(dead_code)]

#[path = "scenarios/all.rs"]
mod all;
#[path = "scenarios/channels.rs"]
mod channels;
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
#[path = "scenarios/messages.rs"]
mod messages;
#[path = "scenarios/messages_by_name.rs"]
mod messages_by_name;
#[path = "scenarios/messages_carrier.rs"]
mod messages_carrier;
#[path = "scenarios/messages_ends.rs"]
mod messages_ends;
#[path = "scenarios/messages_given_up.rs"]
mod messages_given_up;
#[path = "scenarios/messages_incarnations.rs"]
mod messages_incarnations;
#[path = "scenarios/messages_model.rs"]
mod messages_model;
#[path = "scenarios/messages_more.rs"]
mod messages_more;
#[path = "scenarios/messages_rails.rs"]
mod messages_rails;
#[path = "scenarios/messages_reclaimed.rs"]
mod messages_reclaimed;
#[path = "scenarios/messages_staged.rs"]
mod messages_staged;
#[path = "scenarios/messages_waits.rs"]
mod messages_waits;
#[path = "scenarios/messages_walks.rs"]
mod messages_walks;
#[path = "scenarios/messages_whole.rs"]
mod messages_whole;
#[path = "scenarios/metadata.rs"]
mod metadata;
#[path = "scenarios/ops.rs"]
mod ops;
#[path = "scenarios/pairs.rs"]
mod pairs;
#[path = "scenarios/pairs_by_name.rs"]
mod pairs_by_name;
#[path = "scenarios/pairs_crossed.rs"]
mod pairs_crossed;
#[path = "scenarios/peers.rs"]
mod peers;
#[path = "scenarios/persistent.rs"]
mod persistent;
#[path = "scenarios/persistent_ends.rs"]
mod persistent_ends;
#[path = "scenarios/pipeline.rs"]
mod pipeline;
#[path = "scenarios/rails.rs"]
mod rails;
#[path = "scenarios/responses.rs"]
mod responses;
#[path = "scenarios/room.rs"]
mod room;
#[path = "scenarios/script.rs"]
mod script;
#[path = "scenarios/silence.rs"]
mod silence;
#[path = "scenarios/sources.rs"]
mod sources;
#[path = "scenarios/stage.rs"]
mod stage;
#[path = "scenarios/transfers.rs"]
mod transfers;
#[path = "scenarios/user.rs"]
mod user;
#[path = "scenarios/wire.rs"]
mod wire;

type World = common::World<script::Script>;

/// The tables above name scenarios that there are.
#[test]
fn the_tables_name_what_there_is() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scenarios");
    let files = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path());
    let all: String = files.map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let head = include_str!("scenarios.rs").lines().filter(|l| l.starts_with("//! |"));
    let mut count = 0;
    for line in head {
        for name in line.split('`').skip(1).step_by(2).filter(|name| name.contains('_')) {
            let is_test = all.contains(&format!("fn {name}()"));
            let is_pair = all.contains(&format!("    {name}: "));
            assert!(is_test || is_pair, "no scenario is called {name}");
            count += 1;
        }
    }
    assert!(count > 80, "{count} names");
}
