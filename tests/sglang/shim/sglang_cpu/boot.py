"""Makes SGLang importable here. Runs at every interpreter start, from `sglang_cpu.pth`.

Touches nothing but the environment and `sys.modules`, and imports nothing heavy.
"""

import os
import sys
import types

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")

# torchvision's wheel is a CUDA build, whose C++ operators do not load beside a CPU torch. Its Python side
# works without them once this module, which registers them, is out of the way.
sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))
