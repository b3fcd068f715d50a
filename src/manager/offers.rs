//! What a manager offers its peers: the adapters that can be opened here, and by which of them who is on the same host is reached.

use super::memory::Adapters;
use super::sys::{Epoll, Tag};
use crate::bootstrap::{Offer, known_host, random_id};
use crate::config::Config;
use crate::fabric::{self, ProviderKind};
use crate::log;
use crate::status::{Code, Status};

/// Opens the adapters that the settings allow.
pub(super) fn open_adapters(
    config: &Config,
    epoll: &Epoll,
) -> Result<(Adapters, Vec<Offer>), Status> {
    let mut adapters: Adapters = [None, None, None, None];
    let mut offers = Vec::new();
    for kind in ProviderKind::ALL {
        if let Some(only) = config.provider.filter(|&p| p != kind) {
            // By whose word, so that the other side's message says where to look.
            let word = if config.provider_from_env { "RDMA_PROVIDER" } else { "options.provider" };
            let unavailable = Some(format!("not offered, {word} is {}", only.name()));
            offers.push(Offer { kind, unavailable });
            continue;
        }
        let opened = fabric::probe(kind).map_err(|why| {
            let text = text!("provider {}: {}", kind.name(), why.message);
            match why.code {
                // It could be used, if there were descriptors and memory.
                Code::ResourceExhausted => why.with_message(text),
                _ => Status::new(Code::Unavailable, text),
            }
        });
        let named = |why: Status| {
            let text = text!("provider {}: {}", kind.name(), why.message);
            why.with_message(text)
        };
        let unavailable = match opened.and_then(|()| fabric::open(kind, config).map_err(named)) {
            Ok(mut adapter) => {
                adapter.leave_moves();
                if let Some(fd) = adapter.fd() {
                    epoll.add(fd, Tag::Adapter(kind as u8))?;
                }
                for note in adapter.notes() {
                    log::info(format_args!("provider {}: {note}", kind.name()));
                }
                adapters[kind as usize] = Some(adapter);
                None
            }
            Err(status) if config.provider.is_some() => return Err(advise(kind, status)),
            // That will pass, and a manager without the quicker provider would stay as it is for its life.
            Err(status) if status.lacks_descriptors() => return Err(status),
            Err(status) => {
                log::info(format_args!("not used: {}", status.message));
                Some(status.into_message())
            }
        };
        offers.push(Offer { kind, unavailable });
    }
    Ok((adapters, offers))
}

/// What to do about a provider that is required and cannot be used here.
fn advise(kind: ProviderKind, status: Status) -> Status {
    if kind == ProviderKind::Ibverbs && status.code == Code::Unavailable {
        let text = text!(
            "{}; ibverbs needs libibverbs.so.1, its driver for the device, and a port that `ibv_devinfo` \
             shows as PORT_ACTIVE (docs/rdma.md); RDMA_PROVIDER=auto uses what there is",
            status.message
        );
        return status.with_message(text);
    }
    status
}

/// The host that this is. Where that is not known, nobody is on the same one, which is told where shm is not chosen.
pub(super) fn host_id(offers: &mut [Offer]) -> Result<[u8; 16], Status> {
    host_or_why(known_host(), offers)
}

fn host_or_why(known: Result<[u8; 16], Status>, offers: &mut [Offer]) -> Result<[u8; 16], Status> {
    known.or_else(|why| {
        if why.lacks_descriptors() {
            return Err(why);
        }
        let shm = offers.iter_mut().find(|offer| offer.kind == ProviderKind::Shm);
        if let Some(shm) = shm.filter(|offer| offer.unavailable.is_none()) {
            shm.unavailable = Some(why.into_message());
        }
        random_id()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever does not know its own host says so, and not that the others are elsewhere.
    #[test]
    fn an_unknown_host_is_why_shm_is_not_offered() {
        let offer = |kind| Offer { kind, unavailable: None };
        let mut offers = [offer(ProviderKind::Shm), offer(ProviderKind::Tcp)];
        let known = host_or_why(Ok([7; 16]), &mut offers).unwrap();
        assert_eq!((known, &offers[0].unavailable), ([7; 16], &None));
        let why = Status::new(Code::NotFound, "no /proc");
        let unknown = || host_or_why(Err(why.clone()), &mut offers.clone()).unwrap();
        assert_ne!(unknown(), unknown());
        host_or_why(Err(why.clone()), &mut offers).unwrap();
        assert_eq!(offers[0].unavailable.as_deref(), Some("no /proc"));
        assert_eq!(offers[1].unavailable, None);
    }
}
