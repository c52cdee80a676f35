//! For devices: what their handles stand for.

use std::collections::BTreeMap;

/// Values by number. A number is not given again, so a freed handle is never taken for another.
#[derive(Debug)]
pub struct Handles<T> {
    values: BTreeMap<u32, T>,
    next: u32,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Handles { values: BTreeMap::new(), next: 0 }
    }
}

impl<T> Handles<T> {
    /// The number that the next value gets.
    ///
    /// # Panics
    /// After four billion values.
    pub fn next(&self) -> u32 {
        assert!(self.next < u32::MAX, "a device has no more numbers for handles");
        self.next
    }

    /// Adds a value, and returns its number.
    ///
    /// # Panics
    /// As [`next`](Self::next).
    pub fn insert(&mut self, value: T) -> u32 {
        let number = self.next();
        self.next += 1;
        self.values.insert(number, value);
        number
    }

    /// A value, unless it was removed or never was.
    pub fn get(&self, number: u32) -> Option<&T> {
        self.values.get(&number)
    }

    /// The same, to change.
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.values.get_mut(&number)
    }

    /// Removes a value.
    pub fn remove(&mut self, number: u32) -> Option<T> {
        self.values.remove(&number)
    }

    /// All values with their numbers, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.values.iter().map(|(&number, value)| (number, value))
    }

    /// The same, to change.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.values.iter_mut().map(|(&number, value)| (number, value))
    }

    /// All values, the oldest first.
    pub fn into_values(self) -> impl Iterator<Item = T> {
        self.values.into_values()
    }
}
