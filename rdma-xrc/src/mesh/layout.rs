//! The processes of a job, and the nodes that they live on.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;

/// The number of a process in its job, counted from 0: what MPI calls a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rank(
    /// The number.
    pub u32,
);

impl Rank {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.0)
    }
}

/// Which process lives on which node.
///
/// ```
/// use rdma_xrc::mesh::{Layout, Rank};
/// // What each process says of itself, by rank: the name of its host, a hash of it, anything that tells nodes apart.
/// let layout = Layout::new(["left", "right", "left"]);
/// assert_eq!((layout.processes(), layout.nodes()), (3, 2));
/// assert_eq!(layout.on(layout.node_of(Rank(0)).unwrap()), [Rank(0), Rank(2)]);
/// assert_eq!(Layout::even(2, 2), Layout::new([0, 0, 1, 1]));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The node of each process.
    node_of: Vec<usize>,
    /// The processes of each node, in the order of their ranks.
    members: Vec<Vec<Rank>>,
}

impl Layout {
    /// The layout of a job of which each process names its node, in the order of the ranks. Nodes are counted as they are
    /// named first, from 0.
    pub fn new<N: Eq + Hash>(nodes: impl IntoIterator<Item = N>) -> Layout {
        let (mut known, mut node_of, mut members) = (HashMap::new(), Vec::new(), Vec::new());
        for (rank, name) in nodes.into_iter().enumerate() {
            let node = *known.entry(name).or_insert_with(|| {
                members.push(Vec::new());
                members.len() - 1
            });
            node_of.push(node);
            members[node].push(Rank(rank as u32));
        }
        Layout { node_of, members }
    }

    /// `nodes` nodes of `per_node` processes each, whose ranks follow one another.
    pub fn even(nodes: u32, per_node: u32) -> Layout {
        Layout::new((0..nodes).flat_map(|node| std::iter::repeat_n(node, per_node as usize)))
    }

    /// Processes in all.
    pub fn processes(&self) -> usize {
        self.node_of.len()
    }

    /// Nodes in all.
    pub fn nodes(&self) -> usize {
        self.members.len()
    }

    /// The node of a process; `None`: there is no such process.
    pub fn node_of(&self, process: Rank) -> Option<usize> {
        self.node_of.get(process.index()).copied()
    }

    /// The processes of a node, in the order of their ranks; none if there is no such node.
    pub fn on(&self, node: usize) -> &[Rank] {
        self.members.get(node).map_or(&[], Vec::as_slice)
    }

    /// The processes of a node in the order in which they are asked to make the target of `process`: so that each makes as
    /// many as the others.
    pub(super) fn hosts(&self, process: Rank, node: usize) -> impl Iterator<Item = Rank> {
        let own = self.node_of(process).map_or(&[][..], |own| self.on(own));
        let place = own.iter().position(|rank| *rank == process).unwrap_or(0);
        let members = self.on(node);
        // Whoever asks for a target on its own node asks another process, if there is one.
        let shift = usize::from(self.node_of(process) == Some(node));
        (0..members.len()).map(move |at| members[(place + shift + at) % members.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_process_hosts_as_many_targets() {
        let layout = Layout::even(4, 4);
        let mut hosted = [0; 16];
        for process in (0..16).map(Rank) {
            for node in 0..4 {
                let hosts: Vec<Rank> = layout.hosts(process, node).collect();
                assert_eq!(hosts.len(), 4);
                assert_ne!(hosts[0], process);
                hosted[hosts[0].index()] += 1;
            }
        }
        assert_eq!(hosted, [4; 16]);
    }

    #[test]
    fn strangers_are_nobody() {
        let layout = Layout::even(2, 1);
        assert_eq!(layout.node_of(Rank(2)), None);
        assert_eq!(layout.on(2), []);
    }
}
