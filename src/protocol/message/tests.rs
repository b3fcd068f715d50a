use super::*;

fn sample_meta() -> Meta {
    let dims = [3, 0, 9].into_iter().collect();
    Meta { dtype: 7, flags: TENSOR_SERIALIZED, dims, nbytes: 5, ..Meta::default() }
}

/// The same with bytes of the application.
fn beside(user: &[u8]) -> Meta {
    Meta { user: UserBytes::copy(user).unwrap(), ..sample_meta() }
}

const ENVELOPE: Envelope = Envelope { comm: 3, tag: u64::MAX - 4 };

const EXTRA: Extra<'static> = Extra {
    active: true,
    user: b"head",
    parts: &[[1, 0, 0, 0, 0, 1, 0, 0], [4, 0, 0, 0, 0, 0, 0, 0]],
    first: None,
};

fn offer(source: Option<Place>) -> MsgOffer<'static> {
    let (limit, extra) = (0, Extra::default());
    MsgOffer { envelope: ENVELOPE, response: 9, nbytes: 1 << 40, source, limit, extra }
}

/// One of each kind, and some more.
fn with_all(look: impl Fn(&[Message<'_>])) {
    let one = Place { addr: 0x1234_5678_9abc_def0, rkeys: Keys::one(42) };
    let mut several = one.clone();
    assert!(several.rkeys.push(9, 43) && several.rkeys.push(u64::MAX, 44));
    let all = [
        Message::Request(Request {
            index: 1,
            step: -5,
            dst: Some((several.clone(), 77)),
            any_meta: true,
            checksum: true,
            fits: Fits::UpTo(isize::MAX as u64),
            cached: Some(sample_meta()),
            key: b"key",
        }),
        Message::Request(Request {
            index: 1,
            step: i64::MAX,
            dst: None,
            any_meta: false,
            checksum: false,
            fits: Fits::UpTo(0),
            cached: None,
            key: b"k",
        }),
        Message::Request(Request {
            index: 1,
            step: 0,
            dst: Some((one.clone(), 77)),
            any_meta: false,
            checksum: false,
            fits: Fits::Any,
            cached: None,
            key: b"k",
        }),
        Message::Meta(MetaResponse {
            index: 2,
            response: 3,
            follows: true,
            source: Some(several.clone()),
            checksum: Some(9),
            meta: sample_meta(),
        }),
        Message::Meta(MetaResponse {
            index: 2,
            response: 3,
            follows: false,
            source: Some(several.clone()),
            checksum: None,
            meta: beside(b"user"),
        }),
        Message::ReRequest { response: 4, dst: one.clone(), len: 9 },
        Message::ReRequest { response: 4, dst: several.clone(), len: 9 },
        Message::Msg { envelope: ENVELOPE, sync: None, extra: Extra::default(), content: b"hello" },
        Message::Msg {
            envelope: ENVELOPE,
            sync: Some(5),
            extra: Extra { user: b"h", parts: &[[0; 8], [2, 0, 0, 0, 0, 0, 0, 0]], ..Extra::NONE },
            content: b"ab",
        },
        Message::MsgOffer(MsgOffer {
            nbytes: (1 << 40) + 5,
            limit: 4096,
            extra: EXTRA,
            ..offer(Some(one.clone()))
        }),
        Message::MsgOffer(offer(Some(several.clone()))),
        Message::MsgOffer(offer(None)),
        Message::MsgOffer(MsgOffer {
            nbytes: (1 << 40) + 5,
            limit: 0,
            extra: Extra { first: Some(b"be"), ..EXTRA },
            ..offer(None)
        }),
        Message::MsgOffer(MsgOffer {
            limit: 0,
            extra: Extra { first: Some(b""), ..Extra::NONE },
            ..offer(None)
        }),
        Message::MsgGrant { response: 4, request: 5, dst: one.clone(), len: 9, pipeline: false },
        Message::MsgGrant { response: 4, request: 5, dst: several.clone(), len: 9, pipeline: true },
        Message::MsgAck { response: 4, request: 5, at: 1 << 40, len: 0 },
        Message::MsgFrag { request: 5, at: 1 << 40, content: b"some" },
        Message::Buffer(BufferMessage::Request { number: 1, len: 1 << 40 }),
        Message::Buffer(BufferMessage::Response { number: 1, given: None }),
        Message::Buffer(BufferMessage::Response { number: 1, given: Some((2, one.clone(), 9)) }),
        Message::Buffer(BufferMessage::Response {
            number: 1,
            given: Some((2, Place { addr: 8, ..several.clone() }, 9)),
        }),
        Message::Buffer(BufferMessage::Idle { number: u32::MAX }),
        Message::Buffer(BufferMessage::Write { request: 3, buffer: 4, meta: None }),
        Message::Buffer(BufferMessage::Write { request: 3, buffer: 4, meta: Some(sample_meta()) }),
        Message::Buffer(BufferMessage::Write { request: 3, buffer: 4, meta: Some(beside(b"u")) }),
        Message::Buffer(BufferMessage::Recall { number: 5 }),
        Message::Buffer(BufferMessage::Free { buffer: 6 }),
        Message::Pair(PairMessage::Hello { to: u64::MAX, from: 2 }),
        Message::Pair(PairMessage::Bye { to: 1, from: 2, code: -3, text: b"why" }),
        Message::Pair(PairMessage::Open { to: 1, slot: u64::MAX, grant: 3, place: one, len: 4 }),
        Message::Pair(PairMessage::Open {
            to: 1,
            slot: 2,
            grant: 0xF_FFFF,
            place: several,
            len: 4,
        }),
        Message::Pair(PairMessage::Close { grant: 5 }),
        Message::Pair(PairMessage::Closed { grant: 6 }),
        Message::Pair(PairMessage::Done { grant: 7, number: 1, offset: 8, len: 9, checksum: 10 }),
        Message::Pair(PairMessage::Checked { number: 11, same: true }),
        Message::MsgMatched { number: 7 },
        Message::MsgWindow { limit: u64::MAX },
        Message::MsgCarrier { number: 1 << 40 },
        Message::Lost { names: &[7; 2 * NAME] },
        Message::MsgWithdraw { number: 7, sync: false },
        Message::MsgWithdrawn { number: 7, sync: true },
        Message::Error { index: 5, code: 10, text: b"why" },
        Message::Content(Content {
            index: 6,
            checksum: Some(1),
            meta: Some(sample_meta()),
            content: b"hello",
        }),
        Message::Content(Content {
            index: 6,
            checksum: None,
            meta: Some(beside(&[3; MAX_USER])),
            content: b"hello",
        }),
        Message::Content(Content { index: 6, checksum: None, meta: None, content: b"hello" }),
        Message::ContentDone { index: 7, checksum: 8 },
        Message::GetDone { response: 9, ok: true },
        Message::GetDone { response: 9, ok: false },
        Message::TooLong { response: 9 },
        Message::Cancel { index: 10 },
        Message::CancelAck { index: 11 },
        Message::Ping,
        Message::Pong,
        Message::Credit { depth: 12 },
        Message::Fragment { last: true, bytes: b"part" },
        Message::Goodbye { code: 3, text: b"why" },
        Message::Goodbye { code: 0, text: b"" },
        Message::Rail(RailMessage::Add { nonce: [1; 16] }),
        Message::Rail(RailMessage::Join { nonce: [2; 16] }),
        Message::Rail(RailMessage::Joined { nonce: [3; 16] }),
        Message::Rail(RailMessage::End { nonce: [4; 16] }),
    ];
    look(&all);
}

#[test]
fn round_trips() {
    with_all(|all| {
        let mut out = Vec::new();
        for m in all {
            encode(m, &mut out);
            out.extend_from_slice(tail(m));
            out[CREDITS_AT] = 3;
            assert_eq!(decode(&out).unwrap(), (m.clone(), 3), "{m:?}");
            for cut in 0..out.len() {
                let _ = decode(&out[..cut]);
            }
        }
    });
}

/// What a message is not known to have is refused, and not passed over: there is one way to write it.
#[test]
fn what_a_message_does_not_have_is_refused() {
    with_all(|all| {
        let mut out = Vec::new();
        for m in all {
            encode(m, &mut out);
            out.extend_from_slice(tail(m));
            for flags in 0..=u8::MAX {
                let mut other = out.clone();
                other[1] = flags;
                fuzz_message(&other);
            }
            out.push(0);
            fuzz_message(&out);
        }
    });
    for (bytes, why) in [
        (&[MSG_MATCHED, 0, 0, 0, 1, 0, 0, 0, 9, 9][..], "2 bytes more than it has"),
        (&[GET_DONE, 255, 0, 0, 1, 0, 0, 0], "flags 0xff, 0x1 are known"),
        (&[PING, 4, 0, 0], "flags 0x4, 0x0 are known"),
    ] {
        let status = decode(bytes).unwrap_err();
        assert!(status.message.ends_with(why), "{status}");
    }
}

#[test]
fn impossible_metadata_is_refused() {
    let refused = |meta: Meta| {
        let meta = Some(meta);
        let m = Message::Content(Content { index: 6, checksum: None, meta, content: b"hello" });
        let mut out = Vec::new();
        encode(&m, &mut out);
        out.extend_from_slice(tail(&m));
        decode(&out).unwrap_err().into_message()
    };
    let negative = Meta { dims: [3, -1].into_iter().collect(), ..sample_meta() };
    assert!(refused(negative).contains("dimension of -1"));
    let dead = Meta { flags: TENSOR_DEAD, ..sample_meta() };
    assert!(refused(dead).contains("dead tensor with 5 bytes"));
}

/// Of every message that bears metadata.
#[test]
fn user_bytes_have_bounds_and_are_not_cached() {
    let sent = |user: &[u8]| {
        let messages = [
            Message::Content(Content {
                index: 6,
                checksum: None,
                meta: Some(beside(user)),
                content: b"hello",
            }),
            Message::Meta(MetaResponse {
                index: 2,
                response: 3,
                follows: true,
                source: None,
                checksum: None,
                meta: beside(user),
            }),
            Message::Buffer(BufferMessage::Write {
                request: 3,
                buffer: 4,
                meta: Some(beside(user)),
            }),
        ];
        messages.map(|m| {
            let mut out = Vec::new();
            encode(&m, &mut out);
            out.extend_from_slice(tail(&m));
            assert!(head_len(&m) + tail(&m).len() >= out.len());
            out
        })
    };
    let refused = |bytes: &[u8]| decode(bytes).unwrap_err().into_message();
    for message in sent(&[7; MAX_USER + 1]) {
        assert!(refused(&message).contains("513 bytes of the application, 1 to 512"));
    }
    for message in sent(&[7; MAX_USER]) {
        let at = message.windows(4).position(|b| b == [0, 2, 7, 7]).unwrap();
        let with = |len: u16| [&message[..at], &len.to_le_bytes(), &message[at + 2..]].concat();
        assert!(decode(&with(512)).is_ok());
        assert!(refused(&with(0)).contains("0 bytes of the application"));
        assert!(refused(&with(u16::MAX)).contains("65535 bytes of the application"));
        for cut in 0..at + 2 + MAX_USER {
            assert!(decode(&message[..cut]).is_err(), "{cut}");
        }
    }
    let (dst, any_meta, checksum, key) = (None, false, false, &b"key"[..]);
    let cached = Some(beside(b"user"));
    let fits = Fits::Known;
    let m = Request { index: 1, step: 2, dst, any_meta, checksum, fits, cached, key };
    let m = Message::Request(m);
    let mut out = Vec::new();
    encode(&m, &mut out);
    out.extend_from_slice(tail(&m));
    assert!(refused(&out).contains("as known"));
}

#[test]
fn room_has_bounds_and_is_said_once() {
    let (dst, any_meta, checksum, cached, key) = (None, false, false, None, &b"key"[..]);
    let fits = Fits::UpTo(9);
    let m = Request { index: 1, step: 2, dst, any_meta, checksum, fits, cached, key };
    let mut out = Vec::new();
    encode(&Message::Request(m), &mut out);
    out.extend_from_slice(key);
    assert!(decode(&out).is_ok());
    // Header 4, index 4, step 8, then the length.
    let with = |at: usize, byte: u8| {
        let mut bad = out.clone();
        bad[at] = byte;
        decode(&bad).unwrap_err().into_message()
    };
    assert!(with(23, 0x80).contains("bytes, at most"));
    assert!(with(1, 32 | 64).contains("any length, and for some"));
}

#[test]
fn regions_must_ascend_and_be_few() {
    let mut rkeys = Keys::one(1);
    assert!(rkeys.push(8, 2) && rkeys.push(16, 3));
    let m = Message::ReRequest { response: 4, dst: Place { addr: 0, rkeys }, len: 9 };
    let mut out = Vec::new();
    encode(&m, &mut out);
    // Header 4, response 4, address 8, key 4, count 2, then offset 8 and key 4 of each.
    for (at, byte, want) in [(20, 0, "0 further"), (21, 16, "4098 further"), (22, 17, "order")] {
        let mut bad = out.clone();
        bad[at] = byte;
        let s = decode(&bad).unwrap_err();
        assert!(s.message.contains(want), "{s}");
    }
}

#[test]
fn headers_and_parts_have_bounds_and_fit_their_message() {
    let sent = |user: &[u8], parts: &[[u8; 8]]| {
        let mut out = Vec::new();
        let extra = Extra { user, parts, active: false, first: None };
        encode(&Message::Msg { envelope: ENVELOPE, sync: None, extra, content: b"" }, &mut out);
        out.extend_from_slice(b"1234");
        decode(&out).map(drop).map_err(|status| status.into_message())
    };
    let part = |n: u64| n.to_le_bytes();
    assert_eq!(sent(&[7; MAX_USER], &[part(1), part(3)]), Ok(()));
    assert!(sent(&[7; MAX_USER + 1], &[]).unwrap_err().contains("513 bytes"));
    assert!(sent(&[], &[part(0); MAX_PARTS + 1]).unwrap_err().contains("65 parts"));
    assert!(sent(&[], &[part(3)]).unwrap_err().contains("not as long"));
    assert!(sent(&[], &[part(u64::MAX), part(5)]).unwrap_err().contains("not as long"));
    let mut out = Vec::new();
    encode(&Message::MsgOffer(MsgOffer { limit: 1, ..offer(None) }), &mut out);
    assert!(decode(&out).unwrap_err().message.contains("pieces of 1 bytes"));
}

#[test]
fn buffers_have_a_length() {
    let refused = |m: BufferMessage| {
        let mut out = Vec::new();
        encode(&Message::Buffer(m), &mut out);
        decode(&out).unwrap_err().into_message()
    };
    for len in [0, 1 << 63, u64::MAX] {
        assert!(refused(BufferMessage::Request { number: 1, len }).contains("BUFFER_REQUEST of"));
        let place = Place { addr: 0, rkeys: Keys::one(1) };
        let given = Some((2, place, len));
        assert!(refused(BufferMessage::Response { number: 1, given }).contains("RESPONSE of"));
    }
    let given = Some((2, Place { addr: u64::MAX, rkeys: Keys::one(1) }, 9));
    assert!(refused(BufferMessage::Response { number: 1, given }).contains("address space"));
}

#[test]
fn content_length_must_match() {
    let mut out = Vec::new();
    let m = Message::Content(Content {
        index: 6,
        checksum: None,
        meta: Some(sample_meta()),
        content: b"",
    });
    encode(&m, &mut out);
    out.extend_from_slice(b"four");
    assert!(decode(&out).unwrap_err().message.contains("4 bytes of content"));
}

/// A fuzzer in small: random bytes, and valid messages with bytes changed, in a fixed order.
#[test]
fn mutations_never_panic() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let content = Message::Content(Content {
        index: 6,
        checksum: Some(1),
        meta: Some(beside(b"user")),
        content: b"hello",
    });
    let mut valid = Vec::new();
    encode(&content, &mut valid);
    valid.extend_from_slice(b"hello");
    let mut headed = Vec::new();
    let (sync, content) = (Some(5), &b"12345"[..]);
    let parts = &[[5, 0, 0, 0, 0, 0, 0, 0]];
    let extra = Extra { active: true, user: b"user", parts, first: None };
    encode(&Message::Msg { envelope: ENVELOPE, sync, extra, content }, &mut headed);
    headed.extend_from_slice(content);
    for i in 0..40_000 {
        let mut bytes = if i % 2 == 0 { valid.clone() } else { headed.clone() };
        for _ in 0..next() % 4 {
            let at = next() as usize % bytes.len();
            bytes[at] = next() as u8;
        }
        bytes[0] = (next() % 47) as u8;
        bytes.truncate(next() as usize % (bytes.len() + 1));
        fuzz_message(&bytes);
    }
}

/// Whatever becomes of a message, its short way reads as the long one, or not at all.
#[test]
fn the_short_ways_read_the_same() {
    let none = || Meta { dims: Default::default(), ..sample_meta() };
    let mut whole = Vec::new();
    for cached in [None, Some(none()), Some(sample_meta())] {
        let mut head = Short::default();
        assert!(head.request(7, -3, false, cached.as_ref()));
        whole.push([&*head.bytes(), b"key"].concat());
        let mut head = Short::default();
        assert!(head.content(9, cached.as_ref()));
        whole.push([&*head.bytes(), &[1; 8]].concat());
    }
    // With bytes of the application there is no short way.
    assert!(!Short::default().content(9, Some(&beside(b"user"))));
    assert!(usual_request(&whole[4]).is_some() && usual_content(&whole[1]).is_some());
    let plain = UsualMsg { envelope: ENVELOPE, active: false, user: &[], content: &[] };
    let with_user = UsualMsg { user: b"user", ..plain };
    whole.push([&plain.head(3)[..], b"content"].concat());
    whole.push([&with_user.head_user(3)[..], b"user", b"content"].concat());
    let (none, some) = (usual_msg(&whole[6]).unwrap().0, usual_msg(&whole[7]).unwrap().0);
    assert_eq!((none.user, none.content, none.cost()), (&b""[..], &b"content"[..], 7));
    assert_eq!((some.user, some.content, some.cost()), (&b"user"[..], &b"content"[..], 11));
    assert!(!none.active && !some.active);
    for m in [plain, with_user] {
        let m = UsualMsg { active: true, ..m };
        let head = if m.user.is_empty() { m.head(3).to_vec() } else { m.head_user(3).to_vec() };
        if let Some((short, len)) = m.head_short(3).filter(|_| !m.user.is_empty()) {
            assert_eq!(short[..len], [&head, m.user].concat());
        }
        whole.push([&head, m.user, b"content"].concat());
        let read = usual_msg(whole.last().unwrap()).unwrap().0;
        assert_eq!((read.active, read.user, read.content), (true, m.user, &b"content"[..]));
    }
    let mut head = Short::default();
    assert!(head.request(7, -3, true, Some(&sample_meta())));
    whole.push([&*head.bytes(), b"key"].concat());
    let read = usual_request(whole.last().unwrap()).unwrap().0;
    assert!(read.any_len && read.cached.is_some_and(|cached| cached.is(&sample_meta())));
    let mut seed = 5u32;
    for bytes in &whole {
        for len in 0..=bytes.len() {
            fuzz_message(&bytes[..len]);
        }
        for _ in 0..20_000 {
            let mut bytes = bytes.clone();
            for _ in 0..2 {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let at = (seed >> 16) as usize % bytes.len();
                bytes[at] = (seed >> 8) as u8;
            }
            fuzz_message(&bytes);
        }
    }
}
