//! A layer between an executor and a device, and the device with a layer around it.

use planner_core::Stream;
use planner_core::backend::{
    BackendError, Chunks, DeviceAddress, ErrorType, FillError, HostKernels, HostLaunch, HostRange,
    InputWriter, Kernels, Launch, Paging, Point, StateWriter, Streams, Transfers,
};

/// Changes calls on their way to a device. Each method stands for the method of the same name in
/// [`planner_core::backend`]. Its default passes the call on.
pub trait Layer<D: Transfers + Paging> {
    /// The errors of the device and of the layer.
    type Error: BackendError + From<D::Error>;

    /// See [`Streams::wait`].
    ///
    /// # Errors
    /// The errors of the device.
    fn wait(&mut self, device: &mut D, stream: Stream, point: Point) -> Result<(), Self::Error> {
        Ok(device.wait(stream, point)?)
    }

    /// See [`Streams::signal`].
    ///
    /// # Errors
    /// The errors of the device.
    fn signal(&mut self, device: &mut D, stream: Stream) -> Result<Point, Self::Error> {
        Ok(device.signal(stream)?)
    }

    /// See [`Streams::signal_unawaited`]. The default calls [`signal`](Self::signal), so a layer sees
    /// all signals there.
    ///
    /// # Errors
    /// The errors of the device.
    fn signal_unawaited(&mut self, device: &mut D, stream: Stream) -> Result<Point, Self::Error> {
        self.signal(device, stream)
    }

    /// See [`Streams::reached`].
    ///
    /// # Errors
    /// The errors of the device.
    fn reached(&mut self, device: &mut D, point: Point) -> Result<bool, Self::Error> {
        Ok(device.reached(point)?)
    }

    /// See [`Streams::block_until`].
    ///
    /// # Errors
    /// The errors of the device.
    fn block_until(&mut self, device: &mut D, point: Point) -> Result<(), Self::Error> {
        Ok(device.block_until(point)?)
    }

    /// See [`Streams::submit`].
    ///
    /// # Errors
    /// The errors of the device.
    fn submit(&mut self, device: &mut D) -> Result<(), Self::Error> {
        Ok(device.submit()?)
    }

    /// See [`Transfers::create_host`].
    ///
    /// # Errors
    /// The errors of the device.
    fn create_host(&mut self, device: &mut D, bytes: u64) -> Result<(), Self::Error> {
        Ok(device.create_host(bytes)?)
    }

    /// See [`Transfers::write_host`].
    ///
    /// # Errors
    /// The errors of the device.
    fn write_host(
        &mut self,
        device: &mut D,
        offset_bytes: u64,
        from: &[u8],
    ) -> Result<(), Self::Error> {
        Ok(device.write_host(offset_bytes, from)?)
    }

    /// See [`Transfers::read_host`].
    ///
    /// # Errors
    /// The errors of the device.
    fn read_host(
        &mut self,
        device: &mut D,
        offset_bytes: u64,
        into: &mut [u8],
    ) -> Result<(), Self::Error> {
        Ok(device.read_host(offset_bytes, into)?)
    }

    /// See [`Transfers::upload`].
    ///
    /// # Errors
    /// The errors of the device.
    fn upload(
        &mut self,
        device: &mut D,
        from: HostRange,
        to: DeviceAddress,
    ) -> Result<(), Self::Error> {
        Ok(device.upload(from, to)?)
    }

    /// See [`Transfers::download`].
    ///
    /// # Errors
    /// The errors of the device.
    fn download(
        &mut self,
        device: &mut D,
        from: DeviceAddress,
        to: HostRange,
    ) -> Result<(), Self::Error> {
        Ok(device.download(from, to)?)
    }

    /// See [`Paging::create`].
    ///
    /// # Errors
    /// The errors of the device.
    fn create(&mut self, device: &mut D, count: u64) -> Result<(), Self::Error> {
        Ok(device.create(count)?)
    }

    /// See [`Paging::reserve`].
    ///
    /// # Errors
    /// The errors of the device.
    fn reserve(&mut self, device: &mut D, chunks: u64) -> Result<DeviceAddress, Self::Error> {
        Ok(device.reserve(chunks)?)
    }

    /// See [`Paging::map`].
    ///
    /// # Errors
    /// The errors of the device.
    fn map(
        &mut self,
        device: &mut D,
        at: DeviceAddress,
        chunks: Chunks,
    ) -> Result<(), Self::Error> {
        Ok(device.map(at, chunks)?)
    }

    /// See [`Paging::unmap`].
    ///
    /// # Errors
    /// The errors of the device.
    fn unmap(&mut self, device: &mut D, at: DeviceAddress, chunks: u64) -> Result<(), Self::Error> {
        Ok(device.unmap(at, chunks)?)
    }

    /// See [`Kernels::launch`]. `run` makes that call.
    ///
    /// # Errors
    /// The errors of the device.
    fn launch(
        &mut self,
        device: &mut D,
        launch: &Launch<'_>,
        run: impl FnOnce(&mut D, &Launch<'_>) -> Result<(), D::Error>,
    ) -> Result<(), Self::Error> {
        Ok(run(device, launch)?)
    }

    /// See [`HostKernels::launch_on_host`]. `run` makes that call.
    ///
    /// # Errors
    /// The errors of the device.
    fn launch_on_host(
        &mut self,
        device: &mut D,
        launch: &HostLaunch<'_>,
        run: impl FnOnce(&mut D, &HostLaunch<'_>) -> Result<(), D::Error>,
    ) -> Result<(), Self::Error> {
        Ok(run(device, launch)?)
    }

    /// See [`Kernels::fill_states`]. `fill` makes that call.
    ///
    /// # Errors
    /// The errors of the device.
    fn fill_states(
        &mut self,
        states: &mut StateWriter<'_, D>,
        fill: impl FnOnce(&mut StateWriter<'_, D>) -> Result<(), FillError<D::Error>>,
    ) -> Result<(), FillError<Self::Error>> {
        fill(states).map_err(|error| error.map(Self::Error::from))
    }

    /// See [`Kernels::fill_inputs`]. `fill` makes that call.
    ///
    /// # Errors
    /// The errors of the device.
    fn fill_inputs(
        &mut self,
        inputs: &mut InputWriter<'_, D>,
        fill: impl FnOnce(&mut InputWriter<'_, D>) -> Result<(), FillError<D::Error>>,
    ) -> Result<(), FillError<Self::Error>> {
        fill(inputs).map_err(|error| error.map(Self::Error::from))
    }
}

/// A device with a layer.
#[derive(Clone, Copy, Debug)]
pub struct Layered<D, L> {
    /// The device.
    pub device: D,
    /// The layer.
    pub layer: L,
}

impl<D, L> Layered<D, L> {
    /// Puts a layer over a device.
    #[must_use]
    pub const fn new(device: D, layer: L) -> Self {
        Self { device, layer }
    }
}

impl<D: Transfers + Paging, L: Layer<D>> ErrorType for Layered<D, L> {
    type Error = L::Error;
}

impl<D: Transfers + Paging, L: Layer<D>> Streams for Layered<D, L> {
    fn wait(&mut self, stream: Stream, point: Point) -> Result<(), L::Error> {
        self.layer.wait(&mut self.device, stream, point)
    }

    fn signal(&mut self, stream: Stream) -> Result<Point, L::Error> {
        self.layer.signal(&mut self.device, stream)
    }

    fn signal_unawaited(&mut self, stream: Stream) -> Result<Point, L::Error> {
        self.layer.signal_unawaited(&mut self.device, stream)
    }

    fn reached(&mut self, point: Point) -> Result<bool, L::Error> {
        self.layer.reached(&mut self.device, point)
    }

    fn block_until(&mut self, point: Point) -> Result<(), L::Error> {
        self.layer.block_until(&mut self.device, point)
    }

    fn has_host_stream(&self) -> bool {
        self.device.has_host_stream()
    }

    fn has_network_stream(&self) -> bool {
        self.device.has_network_stream()
    }

    fn submit(&mut self) -> Result<(), L::Error> {
        self.layer.submit(&mut self.device)
    }
}

impl<D: Transfers + Paging, L: Layer<D>> Transfers for Layered<D, L> {
    fn create_host(&mut self, bytes: u64) -> Result<(), L::Error> {
        self.layer.create_host(&mut self.device, bytes)
    }

    fn write_host(&mut self, offset_bytes: u64, from: &[u8]) -> Result<(), L::Error> {
        self.layer.write_host(&mut self.device, offset_bytes, from)
    }

    fn read_host(&mut self, offset_bytes: u64, into: &mut [u8]) -> Result<(), L::Error> {
        self.layer.read_host(&mut self.device, offset_bytes, into)
    }

    fn upload(&mut self, from: HostRange, to: DeviceAddress) -> Result<(), L::Error> {
        self.layer.upload(&mut self.device, from, to)
    }

    fn download(&mut self, from: DeviceAddress, to: HostRange) -> Result<(), L::Error> {
        self.layer.download(&mut self.device, from, to)
    }
}

impl<D: Transfers + Paging, L: Layer<D>> Paging for Layered<D, L> {
    fn chunk_bytes(&self) -> u64 {
        self.device.chunk_bytes()
    }

    fn most_range_chunks(&self) -> u64 {
        self.device.most_range_chunks()
    }

    fn create(&mut self, count: u64) -> Result<(), L::Error> {
        self.layer.create(&mut self.device, count)
    }

    fn reserve(&mut self, chunks: u64) -> Result<DeviceAddress, L::Error> {
        self.layer.reserve(&mut self.device, chunks)
    }

    fn map(&mut self, at: DeviceAddress, chunks: Chunks) -> Result<(), L::Error> {
        self.layer.map(&mut self.device, at, chunks)
    }

    fn unmap(&mut self, at: DeviceAddress, chunks: u64) -> Result<(), L::Error> {
        self.layer.unmap(&mut self.device, at, chunks)
    }
}

/// The kernels of a device, for the same device with a layer. Their own calls to the device, such
/// as writes to its host block, bypass the layer.
#[derive(Clone, Copy, Debug)]
pub struct LayeredKernels<K>(pub K);

impl<D, L, K> Kernels<Layered<D, L>> for LayeredKernels<K>
where
    D: Transfers + Paging,
    L: Layer<D>,
    K: Kernels<D>,
{
    fn launch(&mut self, device: &mut Layered<D, L>, launch: &Launch<'_>) -> Result<(), L::Error> {
        let Layered { device, layer } = device;
        layer.launch(device, launch, |device, launch| self.0.launch(device, launch))
    }

    fn on_host(&mut self) -> Option<&mut dyn HostKernels<Layered<D, L>>> {
        let has_some = self.0.on_host().is_some();
        has_some.then_some(self as &mut dyn HostKernels<Layered<D, L>>)
    }

    fn fill_states(
        &mut self,
        states: &mut StateWriter<'_, Layered<D, L>>,
    ) -> Result<(), FillError<L::Error>> {
        let (graph, layout) = (states.graph(), states.layout());
        let Layered { device, layer } = states.device();
        let states = &mut StateWriter::new(graph, device, layout);
        layer.fill_states(states, |states| self.0.fill_states(states))
    }

    fn fill_inputs(
        &mut self,
        inputs: &mut InputWriter<'_, Layered<D, L>>,
    ) -> Result<(), FillError<L::Error>> {
        let (graph, layout, iteration) = (inputs.graph(), inputs.layout(), inputs.iteration());
        let Layered { device, layer } = inputs.device();
        let inputs = &mut InputWriter::new(graph, device, layout, iteration);
        layer.fill_inputs(inputs, |inputs| self.0.fill_inputs(inputs))
    }
}

impl<D, L, K> HostKernels<Layered<D, L>> for LayeredKernels<K>
where
    D: Transfers + Paging,
    L: Layer<D>,
    K: Kernels<D>,
{
    fn launch_on_host(
        &mut self,
        device: &mut Layered<D, L>,
        launch: &HostLaunch<'_>,
    ) -> Result<(), L::Error> {
        let Layered { device, layer } = device;
        let kernels = self.0.on_host().expect("kernels that have some for the host keep them");
        layer
            .launch_on_host(device, launch, |device, launch| kernels.launch_on_host(device, launch))
    }
}
