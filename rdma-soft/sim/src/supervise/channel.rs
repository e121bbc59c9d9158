//! The channels by which the processes meet: host 0 connects, host 1 listens.

use super::world::{Happening, World};
use crate::round::Verdict;

/// A channel.
#[derive(Debug)]
pub struct Channel {
    /// The incarnations that it is between.
    pub between: [u64; 2],
    /// Whether the listening end was told of it.
    pub introduced: bool,
    /// When the last thing that was sent on it arrives, each way: what comes by it comes in order.
    pub last: [rdma_soft::core::time::Instant; 2],
    /// An end has closed it.
    pub closed: bool,
}

/// Something that comes by a channel.
#[derive(Clone, Debug)]
pub enum Note {
    /// An attempt to connect has come to its end.
    Connected,
    /// A message.
    Message(Vec<u8>),
    /// The other end closed it.
    Closed,
}

impl World {
    /// The process of host 0 connects.
    pub fn seek(&mut self, host: usize) {
        if host != 0 {
            return;
        }
        self.next_channel += 1;
        let id = self.next_channel;
        let between = [0, 1].map(|host| self.hosts[host].incarnation);
        let at = self.now + self.channel_delay * 2;
        let channel = Channel {
            between,
            introduced: false,
            last: [at; 2],
            closed: false,
        };
        self.channels.insert(id, channel);
        if let Some(process) = &mut self.hosts[0].process {
            (process.seeking, process.channel) = (Some(id), None);
        }
        // A host that is gone says nothing; one whose process is dead refuses.
        if !self.hosts[1].gone {
            self.agenda.add(at, Happening::Note(0, id, Note::Connected));
        }
    }

    /// Sends something on a channel.
    fn put(&mut self, from: usize, id: u64, note: Note) {
        let at = self.now + self.channel_delay;
        if let Some(channel) = self.channels.get_mut(&id) {
            let at = at.max(channel.last[from]);
            channel.last[from] = at;
            self.agenda.add(at, Happening::Note(1 - from, id, note));
        }
    }

    /// Sends a message on the channel of a process.
    pub fn say(&mut self, host: usize, message: Vec<u8>) {
        let id = self.hosts[host].process.as_ref().and_then(|p| p.channel);
        if let Some(id) = id {
            self.put(host, id, Note::Message(message));
        }
    }

    /// A process closes its channel, or seeks no longer.
    pub fn leave(&mut self, host: usize) {
        let Some(process) = &mut self.hosts[host].process else {
            return;
        };
        for id in [process.channel.take(), process.seeking.take()]
            .into_iter()
            .flatten()
        {
            self.close(host, id);
        }
    }

    /// An end of a channel is closed.
    pub fn close(&mut self, host: usize, id: u64) {
        if let Some(channel) = self.channels.get_mut(&id) {
            channel.closed = true;
            self.put(host, id, Note::Closed);
        }
    }

    /// Closes everything of a process that is killed; a host that is gone does not.
    pub fn hang_up(&mut self, host: usize) {
        let incarnation = self.hosts[host].incarnation;
        let own = |channel: &&u64| self.channels[*channel].between[host] == incarnation;
        let ids: Vec<u64> = self.channels.keys().filter(own).copied().collect();
        for id in ids {
            self.close(host, id);
        }
    }

    /// Something came by a channel.
    pub fn note(&mut self, host: usize, id: u64, note: Note) -> Verdict {
        let h = &mut self.hosts[host];
        let Some(channel) = self.channels.get(&id) else {
            return Ok(());
        };
        if h.gone {
            return Ok(());
        }
        if channel.between[host] != h.incarnation || h.process.is_none() {
            // Whoever sends to a process that is no more is told so.
            if matches!(note, Note::Message(_)) {
                self.put(host, id, Note::Closed);
            }
            return Ok(());
        }
        if h.frozen {
            h.held.push((id, note));
            return Ok(());
        }
        let (at, listens) = (self.at(), self.hosts[1].process.is_some());
        let alive = listens && self.channels[&id].between[1] == self.hosts[1].incarnation;
        let Some(process) = &mut self.hosts[host].process else {
            return Ok(());
        };
        match note {
            Note::Connected if process.seeking == Some(id) => {
                process.seeking = None;
                match alive {
                    true => {
                        process.channel = Some(id);
                        process.machine.met(at);
                    }
                    false => process.machine.channel_lost(at, "refused"),
                }
            }
            Note::Message(message) if process.channel == Some(id) => {
                process.machine.message(at, &message);
            }
            Note::Message(message) if host == 1 && !self.channels[&id].introduced => {
                let former = process.channel.replace(id);
                process.machine.met(at);
                process.machine.message(at, &message);
                if let Some(former) = former {
                    self.close(1, former);
                }
                if let Some(channel) = self.channels.get_mut(&id) {
                    channel.introduced = true;
                }
            }
            Note::Closed if process.channel == Some(id) => {
                process.channel = None;
                process.machine.channel_lost(at, "closed");
            }
            _ => {}
        }
        self.act(host)?;
        self.wake_at(host, self.now);
        Ok(())
    }
}
