"""Builds the wheel from a staged copy of this folder, where lib/ holds the built libraries (see tensorflow.mk)."""

from setuptools import Distribution, setup


class BinaryDistribution(Distribution):
    """The wheel holds shared libraries: it is for one platform, for any Python 3."""

    def has_ext_modules(self):
        return True


try:
    from wheel.bdist_wheel import bdist_wheel
except ImportError:
    from setuptools.command.bdist_wheel import bdist_wheel


class AnyPython(bdist_wheel):
    """The libraries are loaded by ctypes and TensorFlow, not by the interpreter."""

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


setup(
    name="rdma_tensorflow",
    version="0.1.0",
    description='TensorFlow\'s server protocol "grpc+verbs" over rdma-transport',
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.9",
    packages=["rdma_tensorflow"],
    package_data={"rdma_tensorflow": ["lib/*.so", "lib/*.so.0"]},
    distclass=BinaryDistribution,
    cmdclass={"bdist_wheel": AnyPython},
    zip_safe=False,
)
