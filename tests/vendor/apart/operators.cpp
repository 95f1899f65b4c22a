// Operators of the stand-in device: those of the processor, at their turn in the current stream. What they will write
// is allocated at once, so that the caller goes on, as it does with a GPU.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/vendor/apart/memory.hpp"
#include "tests/vendor/apart/streams.hpp"

namespace motley::apart {
namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

// Of a type and in a shape, whose values are not written yet; on the current device.
Tensor new_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type) {
  return at::detail::empty_strided_generic(sizes, strides, &allocator(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type);
}

// The same values with other tensors in them.
template <class Change>
IValue changed(const IValue& value, const Change& change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& tensor : value.toTensorVector()) list.push_back(change(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const std::optional<Tensor>& tensor : value.toOptionalTensorVector())
      list.push_back(tensor ? std::optional(change(*tensor)) : std::nullopt);
    return list;
  }
  return value;
}

template <class Change>
Stack changed(const Stack& values, c10::Device device, const Change& change) {
  Stack all;
  for (const IValue& value : values) all.push_back(value.isDevice() ? IValue(device) : changed(value, change));
  return all;
}

template <class Use>
void each_tensor(const Stack& values, const Use& use) {
  for (const IValue& value : values) (void)changed(value, [&](const Tensor& tensor) { return use(tensor), tensor; });
}

// Tensors of the processor in the device's memory: for tasks, which open it. They keep nothing alive, as a GPU's
// kernels do not.
class Views {
 public:
  Tensor of(const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    Tensor& view = views_[tensor.unsafeGetTensorImpl()];
    if (view.defined()) return view;
    const at::TensorOptions options(tensor.scalar_type());
    if (tensor.is_cpu()) {  // a number, as it is now
      TORCH_CHECK(tensor.dim() == 0, "an operator of the stand-in device was given a tensor of the host");
      view = tensor.clone();
      if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) view.unsafeGetTensorImpl()->set_wrapped_number(true);
    } else if (tensor.numel() == 0) {
      view = at::empty_strided(tensor.sizes(), tensor.strides(), options);
    } else {
      TORCH_CHECK(tensor.is_privateuseone(), "a tensor of ", tensor.device(), " on the stand-in device");
      places_.push_back(tensor.const_data_ptr());
      view = at::from_blob(const_cast<void*>(places_.back()), tensor.sizes(), tensor.strides(), options);
    }
    return view;
  }
  const std::vector<const void*>& places() const { return places_; }

 private:
  std::map<const void*, Tensor> views_;  // one for each tensor: operators ask whether two are the same
  std::vector<const void*> places_;
};

void open_all(Opened& opened, const std::vector<const void*>& places, const std::string& user) {
  for (const void* place : places) opened.add(place, user.c_str());
}

// Its results. The arguments stay: the kernel of an operator with several results takes these from tensors that it has
// let go by then.
Stack results_of(const c10::OperatorHandle& op, c10::DispatchKey key, const Stack& arguments) {
  Stack stack = arguments;
  op.redispatchBoxed(c10::DispatchKeySet(key), &stack);
  return stack;
}

// What the results of an operator depend on but for shapes: how many there are is known once it has run.
bool counts_values(const c10::OperatorHandle& op, const Stack& arguments) {
  static constexpr std::array<std::string_view, 7> names{
      "aten::nonzero",  "aten::masked_select",    "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive",
      "aten::bincount", "aten::repeat_interleave"};
  if (std::ranges::find(names, op.schema().name()) != names.end()) return true;
  if (op.schema().name() != "aten::index") return false;
  bool masks = false;
  each_tensor({arguments.at(1)}, [&](const Tensor& tensor) {
    masks |= tensor.defined() && (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte);
  });
  return masks;
}

// Whether a caller has to wait: for a number, or for how many values there are.
bool tells_numbers(const c10::OperatorHandle& op, const Stack& arguments) {
  for (const c10::Argument& result : op.schema().returns())
    if (!result.type()->isSubtypeOf(*c10::TensorType::get()) &&
        !result.type()->isSubtypeOf(*c10::ListType::ofTensors()))
      return true;
  return counts_values(op, arguments);
}

// The argument that a result is, where the operator writes into it. Results that only look into an argument have
// operators of their own below.
std::optional<std::size_t> written_argument(const c10::FunctionSchema& schema, std::size_t result) {
  const c10::AliasInfo* alias = schema.returns()[result].alias_info();
  if (alias == nullptr) return std::nullopt;
  const std::vector<c10::Argument>& arguments = schema.arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i)
    if (const c10::AliasInfo* of = arguments[i].alias_info();
        of != nullptr && of->isWrite() && of->beforeSets() == alias->beforeSets())
      return i;
  TORCH_CHECK(false, schema.name(), " gives a view, which the stand-in device does not know");
}

bool has_shapes_to_find(const c10::FunctionSchema& schema) {
  const auto is_new = [](const c10::Argument& result) { return result.alias_info() == nullptr; };
  return std::ranges::any_of(schema.returns(), is_new) ||
         std::ranges::any_of(schema.arguments(), &c10::Argument::is_out);
}

// Results in the right shapes and types, without values: by meta tensors, or where the operator does not know those, on
// zeros.
Stack shapes_of_results(const c10::OperatorHandle& op, const Stack& arguments) {
  const c10::InferenceMode guard;
  const auto run = [&](c10::DispatchKey key, c10::Device device, const auto& stand_in) {
    return results_of(op, key, changed(arguments, device, [&](const Tensor& tensor) {
                        return tensor.defined() && !tensor.is_cpu() ? stand_in(tensor) : tensor;
                      }));
  };
  if (op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) {
    try {
      return run(c10::DispatchKey::Meta, c10::Device(c10::kMeta), [](const Tensor& tensor) {
        return at::empty_strided(tensor.sizes(), tensor.strides(),
                                 at::TensorOptions(tensor.scalar_type()).device(at::kMeta));
      });
    } catch (const c10::NotImplementedError&) {
      // What it calls does not know them.
    }
  }
  return run(c10::DispatchKey::CPU, c10::Device(c10::kCPU),
             [](const Tensor& tensor) { return at::zeros(tensor.sizes(), at::TensorOptions(tensor.scalar_type())); });
}

const Tensor& resize_in_place(const Tensor& tensor, at::IntArrayRef sizes, std::optional<at::MemoryFormat>) {
  const c10::DeviceGuard guard(tensor.device());
  const auto bytes =
      static_cast<std::size_t>(c10::multiply_integers(sizes) + tensor.storage_offset()) * tensor.element_size();
  if (tensor.storage().nbytes() < bytes) {
    TORCH_CHECK(tensor.numel() == 0, "the stand-in device moves no values into a larger tensor");
    tensor.storage().set_data_ptr_noswap(allocator().allocate(bytes));
    tensor.storage().set_nbytes(bytes);
  }
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  const c10::DeviceGuard guard(from.is_cpu() ? to.device() : from.device());
  const Tensor host = from.is_cpu() ? from : to.is_cpu() ? to : Tensor();
  const bool between_devices = !host.defined() && from.device() != to.device();
  if (between_devices) stream_of(current_stream(to.device().index())).wait();
  const bool goes_on = host.defined() ? non_blocking && is_pinned(host.const_data_ptr()) : !between_devices;
  // One that reads too early is to see it.
  if (goes_on && to.is_cpu() && to.is_non_overlapping_and_dense() && !is_measured())
    std::memset(to.mutable_data_ptr(), poison, to.nbytes());
  Views views;
  const auto seen = [&](const Tensor& tensor) { return tensor.is_cpu() ? tensor : views.of(tensor); };
  Stream& stream = stream_of(current_stream(guard.current_device().index()));
  const CopyWay way = from.is_cpu() ? CopyWay::up : CopyWay::down;
  const double rate = host.defined() ? copy_rate(way) : 0;
  const c10::DeviceIndex index = guard.current_device().index();
  stream.put([source = seen(from), target = seen(to), places = views.places(), way, index, rate] {
    Opened opened;
    open_all(opened, places, "a copy");
    copy_in_turn(way, index, target.nbytes(), rate, [&] { target.copy_(source); });
  });
  if (!goes_on) stream.wait();
  return to;
}

// Runs the operator on the stream, and waits for it.
Stack run_and_wait(const c10::OperatorHandle& op, const Stack& arguments, Stream& stream) {
  Views views;
  const Stack inputs =
      changed(arguments, c10::Device(c10::kCPU), [&](const Tensor& tensor) { return views.of(tensor); });
  const auto found = std::make_shared<Stack>();
  stream.put([op, inputs, found, places = views.places()] {
    Opened opened;
    open_all(opened, places, op.schema().name());
    *found = results_of(op, c10::DispatchKey::CPU, inputs);
  });
  stream.wait();
  Stack results;
  for (std::size_t i = 0; i < found->size(); ++i) {
    if (const auto written = written_argument(op.schema(), i)) {
      results.push_back(arguments[*written]);
      continue;
    }
    results.push_back(changed((*found)[i], [](const Tensor& values) {
      return values.defined()
                 ? copy_from(values, new_tensor(values.sizes(), values.strides(), values.scalar_type()), false)
                 : values;
    }));
  }
  return results;
}

void copy_into(const IValue& targets, const IValue& values) {
  if (targets.isNone()) return;
  const auto tensors = [](const IValue& value) {
    return value.isTensor() ? std::vector<Tensor>{value.toTensor()} : value.toTensorVector();
  };
  const std::vector<Tensor> to = tensors(targets), from = tensors(values);
  for (std::size_t i = 0; i < to.size(); ++i)
    if (to[i].defined()) to[i].copy_(from.at(i));
}

// Puts the operator into the stream: its results have their shapes, and values at their turn.
Stack put_into_stream(const c10::OperatorHandle& op, const Stack& arguments, Stream& stream) {
  const c10::FunctionSchema& schema = op.schema();
  const Stack shapes = has_shapes_to_find(schema) ? shapes_of_results(op, arguments) : Stack();
  Views views;
  const auto view = [&](const Tensor& tensor) { return views.of(tensor); };
  Stack results, targets;
  for (std::size_t i = 0; i < schema.returns().size(); ++i) {
    if (const auto written = written_argument(schema, i)) {
      results.push_back(arguments[*written]);
      targets.emplace_back();
      if (!schema.arguments()[*written].is_out()) continue;
      const Tensor &out = results.back().toTensor(), &shape = shapes[i].toTensor();
      if (out.sizes() != shape.sizes()) resize_in_place(out, shape.sizes(), std::nullopt);
      continue;
    }
    results.push_back(changed(shapes[i], [](const Tensor& shape) {
      return shape.defined() ? new_tensor(shape.sizes(), shape.strides(), shape.scalar_type()) : shape;
    }));
    targets.push_back(changed(results.back(), view));
  }
  stream.put([op, inputs = changed(arguments, c10::Device(c10::kCPU), view), targets, places = views.places()] {
    Opened opened;
    open_all(opened, places, op.schema().name());
    const Stack found = results_of(op, c10::DispatchKey::CPU, inputs);
    for (std::size_t i = 0; i < targets.size(); ++i) copy_into(targets[i], found.at(i));
  });
  return results;
}

void run_operator(const c10::OperatorHandle& op, Stack* stack) {
  const auto count = static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  const Stack arguments(stack->end() - count, stack->end());
  std::optional<c10::Device> device;
  each_tensor(arguments, [&](const Tensor& tensor) {
    if (!device && tensor.defined() && tensor.is_privateuseone()) device = tensor.device();
  });
  const c10::DeviceGuard guard(device.value_or(device_of(current_device())));
  Stream& stream = stream_of(current_stream(guard.current_device().index()));
  const Stack results =
      tells_numbers(op, arguments) ? run_and_wait(op, arguments, stream) : put_into_stream(op, arguments, stream);
  stack->erase(stack->end() - count, stack->end());
  stack->insert(stack->end(), results.begin(), results.end());
}

Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> type,
                     std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device.value_or(device_of(current_device())));
  return new_tensor(sizes, strides, type.value_or(at::kFloat));
}

Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> type, std::optional<at::Layout>,
             std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device.value_or(device_of(current_device())));
  return at::detail::empty_generic(sizes, &allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   type.value_or(at::kFloat), format);
}

Tensor view(const Tensor& tensor, at::IntArrayRef sizes) { return at::native::view(tensor, sizes); }

Tensor as_strided(const Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides,
                  std::optional<std::int64_t> offset) {
  return at::native::as_strided_tensorimpl(tensor, sizes, strides, offset);
}

Tensor reshape_alias(const Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides) {
  return at::native::_reshape_alias(tensor, sizes, strides);
}

Tensor unfold(const Tensor& tensor, std::int64_t dimension, std::int64_t size, std::int64_t step) {
  return at::native::unfold(tensor, dimension, size, step);
}

void record_stream(Tensor& tensor, c10::Stream stream) {
  allocator().recordStream(tensor.storage().data_ptr(), stream);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_operator>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("resize_", &resize_in_place);
  library.impl("view", &view);
  library.impl("as_strided", &as_strided);
  library.impl("_reshape_alias", &reshape_alias);
  library.impl("unfold", &unfold);
  library.impl("record_stream", &record_stream);
}

}  // namespace
}  // namespace motley::apart
