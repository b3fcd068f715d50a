//! The clients of a server, each in one list by what there is to do for it: so nobody looks at those for whom there is nothing.

use std::time::Instant;

use super::client::Client;

/// What becomes of a client next. Each list is in the order in which they came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// A place of none.
    Free,
    /// It has not proved the secret. First is who came first.
    Strangers,
    /// A part of a message has come of it, or of an answer gone to it. First is who has not got on for longest.
    Moving,
    /// It waits for keys.
    Waiting,
    /// It waits for room, for its message or its answer.
    Held,
    /// It has had its share of a turn, and asks more.
    Again,
    /// Nothing of it is under way. First is who has rested for longest.
    Resting,
}

const LISTS: usize = List::Resting as usize + 1;
/// No place.
const NONE: u32 = u32::MAX;

struct Place {
    client: Option<Client>,
    list: List,
    prev: u32,
    next: u32,
}

#[derive(Clone, Copy)]
struct Ends {
    first: u32,
    last: u32,
    count: usize,
}

/// Clients by their places, which stay theirs.
pub struct Crowd {
    places: Vec<Place>,
    lists: [Ends; LISTS],
    /// Looks at a client.
    #[cfg(test)]
    looks: std::cell::Cell<usize>,
}

impl Crowd {
    /// Nobody.
    pub fn new() -> Crowd {
        Crowd {
            places: Vec::new(),
            lists: [Ends { first: NONE, last: NONE, count: 0 }; LISTS],
            #[cfg(test)]
            looks: Default::default(),
        }
    }

    /// A place for one more, for whom there is memory.
    pub fn place(&mut self) -> Option<u32> {
        if self.count(List::Free) == 0 {
            self.places.try_reserve(1).ok()?;
            let at = self.places.len() as u32;
            self.places.push(Place { client: None, list: List::Free, prev: NONE, next: NONE });
            self.link(at, List::Free);
        }
        Some(self.lists[List::Free as usize].first)
    }

    /// Somebody comes to a free place.
    pub fn add(&mut self, at: u32, client: Client) {
        self.places[at as usize].client = Some(client);
        self.put(at, List::Strangers);
    }

    /// Somebody goes.
    pub fn remove(&mut self, at: u32) -> Option<Client> {
        let client = self.places.get_mut(at as usize)?.client.take()?;
        self.put(at, List::Free);
        Some(client)
    }

    /// The client of a place, and its list.
    pub fn get(&mut self, at: u32) -> Option<(&mut Client, List)> {
        let place = self.places.get_mut(at as usize)?;
        #[cfg(test)]
        self.looks.update(|looks| looks + 1);
        place.client.as_mut().map(|client| (client, place.list))
    }

    /// Puts one to the end of a list.
    pub fn put(&mut self, at: u32, list: List) {
        let Place { list: was, prev, next, .. } = self.places[at as usize];
        let ends = &mut self.lists[was as usize];
        ends.count -= 1;
        match self.places.get_mut(prev as usize) {
            Some(place) => place.next = next,
            None => ends.first = next,
        }
        match self.places.get_mut(next as usize) {
            Some(place) => place.prev = prev,
            None => ends.last = prev,
        }
        self.link(at, list);
    }

    /// Puts one that is in no list to the end of one.
    fn link(&mut self, at: u32, list: List) {
        let ends = &mut self.lists[list as usize];
        ends.count += 1;
        let prev = std::mem::replace(&mut ends.last, at);
        match self.places.get_mut(prev as usize) {
            Some(place) => place.next = at,
            None => ends.first = at,
        }
        let place = &mut self.places[at as usize];
        (place.list, place.prev, place.next) = (list, prev, NONE);
    }

    /// The first of a list, and when it moved.
    pub fn first(&self, list: List) -> Option<(u32, Instant)> {
        let at = self.lists[list as usize].first;
        let client = self.places.get(at as usize)?.client.as_ref()?;
        Some((at, client.moved))
    }

    /// How many are in a list.
    pub fn count(&self, list: List) -> usize {
        self.lists[list as usize].count
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.places.len() - self.count(List::Free)
    }

    /// All of them: as many looks.
    pub fn all(&self) -> impl Iterator<Item = (u32, &Client)> {
        #[cfg(test)]
        self.looks.update(|looks| looks + self.len());
        let clients = self.places.iter().zip(0..);
        clients.filter_map(|(place, at)| place.client.as_ref().map(|client| (at, client)))
    }

    /// How often a client was looked at.
    #[cfg(test)]
    pub fn looks(&self) -> usize {
        self.looks.get()
    }
}
