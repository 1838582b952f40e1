// Command deviceplugin is the lab's stand-in for NVIDIA's device plugin: the kubelet's real protocol (v1beta1), the
// GPUs and their XID events by the real NVML binding, and CDI names for the containers. It reads the variables of
// NVIDIA's plugin that the lab uses: CONTAINER_DRIVER_ROOT and DP_DISABLE_HEALTHCHECKS.
package main

// What libnvidia-ml.so.1 needs has to be in the image: it comes with what the program itself is linked to.

// #cgo LDFLAGS: -Wl,--no-as-needed -lm
import "C"

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	resource    = "nvidia.com/gpu"
	cdiKind     = "nvidia.com/gpu"
	socket      = api.DevicePluginPath + "nvidia-gpu.sock"
	library     = "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
	eventWaitMs = 1000
	kubeletLook = time.Second
)

// XIDs that a job causes, not the GPU: as in NVIDIA's plugin.
var ofTheJob = []uint64{13, 31, 43, 45, 68, 109}

func main() {
	root := os.Getenv("CONTAINER_DRIVER_ROOT")
	if root == "" {
		root = "/driver-root"
	}
	gpus := nvml.New(nvml.WithLibraryPath(filepath.Join(root, library)))
	if err := serve(gpus, os.Getenv("DP_DISABLE_HEALTHCHECKS")); err != nil {
		log.Fatal(err)
	}
	log.Fatal(again())
}

// again begins anew in this process: its threads, connections and libraries are gone, and kubelet, which waits longer
// each time that a container ends, has nothing to start. Within the program it would not do: what was bound to the
// driver's library stays bound to it, also when another driver has come.
func again() error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	return syscall.Exec(program, os.Args, os.Environ())
}

// serve ends with an error when a service that it needs does, and without one when kubelet was started again: its
// new process knows no plugin.
func serve(gpus nvml.Interface, disabled string) error {
	if code := gpus.Init(); code != nvml.SUCCESS {
		return fmt.Errorf("NVML: %v", gpus.ErrorString(code))
	}
	found, err := devices(gpus)
	if err != nil {
		return err
	}
	plugin := &plugin{devices: found, changed: make(chan struct{})}
	// Before there is a socket of ours: a kubelet that starts removes those of the plugins, then makes its own.
	kubelet, err := os.Stat(api.KubeletSocket)
	if err != nil {
		return err
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, plugin)
	failed := make(chan error, 2)
	go func() { failed <- server.Serve(listener) }()
	if disabled != "all" {
		go func() { failed <- watch(gpus, plugin, disabled) }()
	}
	if err := register(); err != nil {
		return err
	}
	log.Printf("offering %d %s", len(found), resource)
	for {
		select {
		case err := <-failed:
			return err
		case <-time.After(kubeletLook):
			now, err := os.Stat(api.KubeletSocket)
			if err == nil && !same(now, kubelet) {
				log.Print("kubelet was started again")
				return nil
			}
		}
	}
}

// same says whether both are one socket: a new file may get the number of the one before, with a time of its own.
func same(now, before os.FileInfo) bool {
	return os.SameFile(now, before) && now.ModTime().Equal(before.ModTime())
}

func devices(gpus nvml.Interface) ([]*api.Device, error) {
	count, code := gpus.DeviceGetCount()
	if code != nvml.SUCCESS {
		return nil, fmt.Errorf("NVML: count of GPUs: %v", gpus.ErrorString(code))
	}
	found := make([]*api.Device, 0, count)
	for index := range count {
		gpu, code := gpus.DeviceGetHandleByIndex(index)
		if code != nvml.SUCCESS {
			return nil, fmt.Errorf("NVML: GPU %d: %v", index, gpus.ErrorString(code))
		}
		uuid, code := gpu.GetUUID()
		if code != nvml.SUCCESS {
			return nil, fmt.Errorf("NVML: UUID of GPU %d: %v", index, gpus.ErrorString(code))
		}
		found = append(found, &api.Device{ID: uuid, Health: api.Healthy})
	}
	return found, nil
}

// watch marks a GPU unhealthy for good at its first XID that is not of the job alone.
func watch(gpus nvml.Interface, plugin *plugin, disabled string) error {
	ignored := slices.Clone(ofTheJob)
	for _, text := range strings.Split(disabled, ",") {
		if xid, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64); err == nil {
			ignored = append(ignored, xid)
		}
	}
	events, code := gpus.EventSetCreate()
	if code != nvml.SUCCESS {
		return fmt.Errorf("NVML: events: %v", gpus.ErrorString(code))
	}
	for _, device := range plugin.devices {
		gpu, code := gpus.DeviceGetHandleByUUID(device.ID)
		if code == nvml.SUCCESS {
			code = gpu.RegisterEvents(nvml.EventTypeXidCriticalError, events)
		}
		if code != nvml.SUCCESS {
			plugin.unhealthy(device.ID, "its events cannot be watched: "+gpus.ErrorString(code))
		}
	}
	for {
		event, code := events.Wait(eventWaitMs)
		if code == nvml.ERROR_TIMEOUT {
			continue
		}
		if code != nvml.SUCCESS {
			return fmt.Errorf("NVML: events: %v", gpus.ErrorString(code))
		}
		if slices.Contains(ignored, event.EventData) {
			continue
		}
		uuid, code := event.Device.GetUUID()
		if code != nvml.SUCCESS {
			return fmt.Errorf("NVML: UUID of an event's GPU: %v", gpus.ErrorString(code))
		}
		plugin.unhealthy(uuid, fmt.Sprintf("XID %d", event.EventData))
	}
}

func register() error {
	connection, err := grpc.NewClient("unix://"+api.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err = api.NewRegistrationClient(connection).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: filepath.Base(socket), ResourceName: resource,
	}, grpc.WaitForReady(true))
	return err
}

// plugin is the service that kubelet calls; `changed` is closed, and made anew, when the health of a device changes.
type plugin struct {
	api.UnimplementedDevicePluginServer
	mutex   sync.Mutex
	devices []*api.Device
	changed chan struct{}
}

func (p *plugin) unhealthy(uuid, reason string) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for index, device := range p.devices {
		if device.ID == uuid && device.Health == api.Healthy {
			log.Printf("%s is not offered any more: %s", uuid, reason)
			p.devices[index] = &api.Device{ID: uuid, Health: api.Unhealthy}
			close(p.changed)
			p.changed = make(chan struct{})
		}
	}
}

func (p *plugin) now() ([]*api.Device, <-chan struct{}) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return slices.Clone(p.devices), p.changed
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	for {
		devices, changed := p.now()
		if err := stream.Send(&api.ListAndWatchResponse{Devices: devices}); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	response := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		answer := &api.ContainerAllocateResponse{}
		for _, uuid := range container.DevicesIds {
			answer.CdiDevices = append(answer.CdiDevices, &api.CDIDevice{Name: cdiKind + "=" + uuid})
		}
		response.ContainerResponses = append(response.ContainerResponses, answer)
	}
	return response, nil
}
