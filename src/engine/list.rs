//! Lists through a [`Slab`]: their links lie in the members, so that membership takes no memory of its own, and
//! leaving costs the same from anywhere.

use super::slab::Slab;

/// The index of nobody: its generation is none of a slab's.
const NONE: u32 = u32::MAX;

/// A member's neighbours in one list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Links {
    prev: u32,
    next: u32,
}

impl Default for Links {
    fn default() -> Links {
        Links { prev: NONE, next: NONE }
    }
}

impl Links {
    /// The member behind it.
    pub fn next(self) -> Option<u32> {
        (self.next != NONE).then_some(self.next)
    }
}

/// Where a member keeps its links of one list.
pub(crate) type Of<T> = fn(&mut T) -> &mut Links;

/// The list's own part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    first: u32,
}

impl Default for List {
    fn default() -> List {
        List { first: NONE }
    }
}

impl List {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.first == NONE
    }

    pub fn first(&self) -> Option<u32> {
        (!self.is_empty()).then_some(self.first)
    }

    /// Takes a member in, which is in no other list by these links.
    #[inline]
    pub fn push<T>(&mut self, slab: &mut Slab<T>, of: Of<T>, index: u32) {
        if let Some(member) = slab.get_mut(index) {
            *of(member) = Links { prev: NONE, next: self.first };
            if let Some(next) = slab.get_mut(self.first) {
                of(next).prev = index;
            }
            self.first = index;
        }
    }

    /// Lets a member go, whose links these are.
    #[inline]
    pub fn remove<T>(&mut self, slab: &mut Slab<T>, of: Of<T>, index: u32, links: Links) {
        if let Some(next) = slab.get_mut(links.next) {
            of(next).prev = links.prev;
        }
        match slab.get_mut(links.prev) {
            Some(prev) => of(prev).next = links.next,
            None if self.first == index => self.first = links.next,
            None => {}
        }
    }
}

/// The same, first in, first out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fifo {
    first: u32,
    last: u32,
}

impl Default for Fifo {
    fn default() -> Fifo {
        Fifo { first: NONE, last: NONE }
    }
}

impl Fifo {
    pub fn is_empty(&self) -> bool {
        self.first == NONE
    }

    pub fn first(&self) -> Option<u32> {
        (!self.is_empty()).then_some(self.first)
    }

    /// Takes a member in at the end, which is in no other list by these links.
    pub fn push<T>(&mut self, slab: &mut Slab<T>, of: Of<T>, index: u32) {
        if let Some(member) = slab.get_mut(index) {
            *of(member) = Links { prev: self.last, next: NONE };
            match slab.get_mut(self.last) {
                Some(last) => of(last).next = index,
                None => self.first = index,
            }
            self.last = index;
        }
    }

    /// The same, before all others.
    pub fn push_first<T>(&mut self, slab: &mut Slab<T>, of: Of<T>, index: u32) {
        if let Some(member) = slab.get_mut(index) {
            *of(member) = Links { prev: NONE, next: self.first };
            match slab.get_mut(self.first) {
                Some(first) => of(first).prev = index,
                None => self.last = index,
            }
            self.first = index;
        }
    }

    /// Takes the first member out.
    #[inline(always)]
    pub fn pop<T>(&mut self, slab: &mut Slab<T>, of: Of<T>) -> Option<u32> {
        let first = self.first()?;
        let Links { next, .. } = *of(slab.get_mut(first)?);
        self.first = next;
        match next {
            NONE => self.last = NONE,
            next => {
                if let Some(next) = slab.get_mut(next) {
                    of(next).prev = NONE;
                }
            }
        }
        Some(first)
    }

    /// Lets a member go, whose links these are.
    pub fn remove<T>(&mut self, slab: &mut Slab<T>, of: Of<T>, index: u32, links: Links) {
        match slab.get_mut(links.next) {
            Some(next) => of(next).prev = links.prev,
            None if self.last == index => self.last = links.prev,
            None => {}
        }
        match slab.get_mut(links.prev) {
            Some(prev) => of(prev).next = links.next,
            None if self.first == index => self.first = links.next,
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(list: &List, slab: &mut Slab<Member>) -> Vec<u32> {
        let (mut all, mut at) = (Vec::new(), list.first);
        while let Some(member) = slab.get_mut(at) {
            all.push(at);
            at = member.links.next;
        }
        all
    }

    struct Member {
        links: Links,
    }

    fn of(m: &mut Member) -> &mut Links {
        &mut m.links
    }

    #[test]
    fn the_first_in_is_the_first_out() {
        let (mut slab, mut queue) = (Slab::default(), Fifo::default());
        let all: Vec<u32> = (0..5)
            .map(|_| {
                let index = slab.insert(Member { links: Links::default() }).ok().unwrap();
                queue.push(&mut slab, of, index);
                index
            })
            .collect();
        let order = |queue: &Fifo, slab: &mut Slab<Member>| {
            let (mut found, mut at) = (Vec::new(), queue.first());
            while let Some(index) = at {
                found.push(index);
                at = slab.get_mut(index).unwrap().links.next();
            }
            found
        };
        assert_eq!(order(&queue, &mut slab), all);
        for (gone, left) in [(2, vec![0, 1, 3, 4]), (4, vec![0, 1, 3]), (0, vec![1, 3])] {
            let links = slab.remove(all[gone]).unwrap().links;
            queue.remove(&mut slab, of, all[gone], links);
            let left: Vec<u32> = left.iter().map(|&i| all[i]).collect();
            assert_eq!(order(&queue, &mut slab), left);
        }
        let again = slab.insert(Member { links: Links::default() }).ok().unwrap();
        queue.push(&mut slab, of, again);
        let hasty = slab.insert(Member { links: Links::default() }).ok().unwrap();
        queue.push_first(&mut slab, of, hasty);
        assert_eq!(order(&queue, &mut slab), [hasty, all[1], all[3], again]);
        for index in [all[1], hasty, all[3], again] {
            let links = slab.remove(index).unwrap().links;
            queue.remove(&mut slab, of, index, links);
        }
        assert!(queue.is_empty() && queue.first().is_none());
        let only = slab.insert(Member { links: Links::default() }).ok().unwrap();
        queue.push_first(&mut slab, of, only);
        let last = slab.insert(Member { links: Links::default() }).ok().unwrap();
        queue.push(&mut slab, of, last);
        assert_eq!(order(&queue, &mut slab), [only, last]);
    }

    #[test]
    fn members_come_and_go_from_anywhere() {
        let (mut slab, mut one, mut other) = (Slab::default(), List::default(), List::default());
        let enter = |slab: &mut Slab<Member>, list: &mut List| {
            let index = slab.insert(Member { links: Links::default() }).ok().unwrap();
            list.push(slab, of, index);
            index
        };
        let leave = |slab: &mut Slab<Member>, list: &mut List, index| {
            let gone = slab.remove(index).unwrap();
            list.remove(slab, of, index, gone.links);
        };
        assert!(one.is_empty());
        let mine: Vec<u32> = (0..5).map(|_| enter(&mut slab, &mut one)).collect();
        let last = enter(&mut slab, &mut other);
        assert_eq!(members(&one, &mut slab), [mine[4], mine[3], mine[2], mine[1], mine[0]]);
        for (gone, left) in [(2, vec![4, 3, 1, 0]), (4, vec![3, 1, 0]), (0, vec![3, 1])] {
            leave(&mut slab, &mut one, mine[gone]);
            let left: Vec<u32> = left.iter().map(|&i| mine[i]).collect();
            assert_eq!(members(&one, &mut slab), left);
        }
        leave(&mut slab, &mut one, mine[3]);
        assert_eq!(one.first(), Some(mine[1]));
        leave(&mut slab, &mut one, mine[1]);
        assert!(one.is_empty() && one.first().is_none());
        leave(&mut slab, &mut other, last);
        assert!(other.is_empty());
    }
}
