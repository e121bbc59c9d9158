// Two connected Queue Pairs on the software device, for the examples of the guide.
#[allow(dead_code)]
struct End {
    device: rdma_qp::Device,
    pd: rdma_qp::Pd,
    cq: rdma_qp::Cq,
    mr: rdma_qp::Mr,
    qp: rdma_qp::Qp,
    peer: rdma_qp::Peer,
}

#[allow(dead_code)]
fn pair(timing: rdma_qp::Timing) -> Result<(End, End), Box<dyn std::error::Error>> {
    use rdma_qp::{Access, Device, Memory, Peer};
    let end = || -> Result<_, Box<dyn std::error::Error>> {
        let name = rdma_soft::add_device(rdma_soft::Profile::default())?;
        let device = Device::open(rdma_soft::verbs(), &name)?;
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(256)?);
        let all = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let mr = pd.register(Memory::zeroed(4096), all)?;
        let mut qp = pd.rc(&cq).send_depth(64).recv_depth(64).create()?;
        let endpoint = qp.endpoint(device.port(1)?.best_gid()?)?;
        let regions = vec![mr.remote()];
        Ok((device, pd, cq, mr, qp, Peer { endpoint, regions }))
    };
    let (a, b) = (end()?, end()?);
    let (of_a, of_b) = (a.5.clone(), b.5.clone());
    let mut ends = [(a, of_b), (b, of_a)].map(|((device, pd, cq, mr, qp, _), peer)| End {
        device,
        pd,
        cq,
        mr,
        qp,
        peer,
    });
    let mut agreed = Vec::new();
    for end in &mut ends {
        agreed.push(end.qp.connect_begin(&end.peer.clone(), timing)?);
    }
    for (end, agreed) in ends.iter_mut().zip(agreed) {
        end.qp.connect_finish(agreed, timing)?;
    }
    let [a, b] = ends;
    Ok((a, b))
}
