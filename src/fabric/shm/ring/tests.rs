use super::*;

/// Both ends, as two processes would have them: the consumer has a mapping of its own.
fn ring() -> (Producer, Consumer) {
    let (producer, fd) = Producer::create().unwrap();
    let consumer = Consumer::map(&fd).unwrap();
    (producer, consumer)
}

fn length(i: u32) -> usize {
    // Short ones mostly, and every length around a line's end, now and then the largest.
    match i % 11 {
        0..8 => (i.wrapping_mul(2_654_435_761) >> 8) as usize % 130,
        8 | 9 => (i.wrapping_mul(2_654_435_761) >> 8) as usize % 5000,
        _ => MAX_PAYLOAD - i as usize % 3,
    }
}

/// Content that looks like a published header wherever a line begins.
fn body(i: u32, out: &mut Vec<u8>) {
    out.clear();
    out.resize(length(i), 1);
    let tag = i.to_le_bytes();
    out.iter_mut().enumerate().skip(1).step_by(7).for_each(|(at, b)| *b = tag[at % 4] | 1);
}

#[test]
fn two_threads_pass_every_record_unchanged() {
    const COUNT: u32 = 200_000;
    let (mut producer, mut consumer) = ring();
    // Stands for the consumer's own control page.
    let (other, other_fd) = Producer::create().unwrap();
    let told = Consumer::map(&other_fd).unwrap();
    let writer = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        for i in 0..COUNT {
            body(i, &mut bytes);
            loop {
                match producer.reserve(bytes.len(), told.control()) {
                    Ok(mut slot) => {
                        let (head, tail) = bytes.split_at(bytes.len() / 2);
                        slot.put(head);
                        slot.put(tail);
                        slot.publish(1 + (i % 200) as u8, i as u8);
                        break;
                    }
                    Err(NoRoom::Full) => std::thread::yield_now(),
                    Err(NoRoom::Broken) => panic!("broken"),
                }
            }
        }
    });
    let mut expected = Vec::new();
    let mut i = 0;
    while i < COUNT {
        let Some(header) = consumer.peek().unwrap() else {
            // The space of all that was read goes back at once, or late: both must do.
            consumer.release();
            consumer.tell(other.control());
            std::thread::yield_now();
            continue;
        };
        body(i, &mut expected);
        assert_eq!(header.len as usize, expected.len(), "record {i}");
        assert_eq!((header.kind, header.flags), (1 + (i % 200) as u8, i as u8), "record {i}");
        // SAFETY: a published record of that length; its producer leaves it alone until told.
        let bytes = unsafe { std::slice::from_raw_parts(consumer.payload(), expected.len()) };
        assert!(bytes == expected, "record {i}");
        consumer.advance(header.len);
        i += 1;
        consumer.release();
        if consumer.should_tell() {
            consumer.tell(other.control());
        }
    }
    writer.join().unwrap();
    assert_eq!(consumer.peek(), Ok(None));
}

#[test]
fn a_ring_takes_what_fits_and_no_more() {
    let (mut producer, mut consumer) = ring();
    let (other, _fd) = Producer::create().unwrap();
    let lines = producer.lines.lines();
    for lap in 0..3 {
        let mut records = 0;
        while let Ok(slot) = producer.reserve(0, other.control()) {
            slot.publish(1, 0);
            records += 1;
        }
        assert_eq!(records, lines - 1, "lap {lap}: one line stays free");
        for _ in 0..records {
            let header = consumer.peek().unwrap().unwrap();
            consumer.advance(header.len);
        }
        assert_eq!(consumer.peek(), Ok(None), "lap {lap}");
        assert!(producer.reserve(0, other.control()).is_err());
        consumer.release();
        consumer.tell(other.control());
    }
}

#[test]
fn impossible_positions_and_lengths_are_noticed() {
    let (mut producer, consumer) = ring();
    let (peer, _fd) = Producer::create().unwrap();
    for bad in [producer.lines.lines() + 7, u64::MAX] {
        peer.control().consumed.store(bad, Ordering::Relaxed);
        while producer.room(MAX_PAYLOAD, peer.control()).is_ok() {
            let mut slot = producer.reserve(MAX_PAYLOAD, peer.control()).unwrap();
            slot.put(&[0; MAX_PAYLOAD]);
            slot.publish(1, 0);
        }
        assert_eq!(producer.room(MAX_PAYLOAD, peer.control()), Err(NoRoom::Broken));
    }
    let header = Header { kind: 1, flags: 0, len: MAX_PAYLOAD as u32 + 1 };
    producer.lines.word(0).store(header.pack(), Ordering::Relaxed);
    assert!(consumer.peek().is_err());
}

#[test]
fn a_file_that_can_shrink_or_has_another_size_is_refused() {
    let file = Geometry::own().file();
    let page = sys::page_size();
    for len in [page, file - page, file + page, page + (32 << 10), page + (2 << 20)] {
        let other = sys::memfd(c"other", len).unwrap();
        sys::seal_future_write(&other).unwrap();
        let refused = Consumer::map(&other).unwrap_err().to_string();
        assert!(refused.contains(&format!("a file of {len} bytes")), "{refused}");
    }
    let other = sys::memfd(c"other", page + (64 << 10).max(page)).unwrap();
    sys::seal_future_write(&other).unwrap();
    assert!(Consumer::map(&other).is_ok(), "another size that a ring may have");
    let (read, _write) = std::io::pipe().unwrap();
    assert!(Consumer::map(&read.into()).is_err());
}
