//! Types that this crate passes by pointer only.

macro_rules! opaque {
    ($( $(#[$meta:meta])* $name:ident; )*) => { $(
        $(#[$meta])*
        #[repr(C)]
        #[derive(Debug)]
        pub struct $name {
            _bytes: [u8; 0],
            _neither_send_nor_sync: core::marker::PhantomData<*mut u8>,
        }
    )* };
}

opaque! {
    /// The port attributes as `ibv_query_port@IBVERBS_1.1` writes them: the first 48 bytes of [`ibv_port_attr`](crate::ibv_port_attr).
    _compat_ibv_port_attr;
    /// The private part of an extended context, behind `verbs_context::priv_`.
    verbs_ex_private;
    /// A flow steering rule.
    ibv_flow;
    /// The attributes of a flow steering rule, followed by its specifications.
    ibv_flow_attr;
    /// An action of a flow steering rule.
    ibv_flow_action;
    /// The attributes of an ESP action.
    ibv_flow_action_esp_attr;
    /// A set of flow counters.
    ibv_counters;
    /// The attributes of a set of flow counters.
    ibv_counters_init_attr;
    /// How a counter is attached to a flow.
    ibv_counter_attach_attr;
    /// A receive work queue indirection table.
    ibv_rwq_ind_table;
    /// The attributes of a receive work queue indirection table.
    ibv_rwq_ind_table_init_attr;
    /// A DMA handle (rdma-core v59).
    ibv_dmah;
    /// The attributes of a DMA handle (rdma-core v59).
    ibv_dmah_init_attr;
    /// The attributes of `ibv_reg_mr_ex` (rdma-core v59).
    ibv_mr_init_attr;
    /// A buffer of `ibv_alloc_buf` (rdma-core v64).
    ibv_buf;
}
