#include <zero/accel/device.h>

#include <utility>

namespace zero::accel {

Buffer::~Buffer() {
  if (data_ != nullptr) {
    device_->deallocate(data_, bytes_, space_, category_);
  }
}

void Buffer::swap(Buffer& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(space_, other.space_);
  std::swap(category_, other.category_);
}

TensorView Buffer::view(DType dtype, Shape shape) const {
  const TensorView whole{data_, dtype, shape};
  ZERO_CHECK(whole.bytes() <= bytes_, "view of " + shape.to_string() + " beyond its buffer");
  return whole;
}

}  // namespace zero::accel
