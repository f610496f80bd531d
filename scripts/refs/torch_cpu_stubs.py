# SPDX-License-Identifier: MIT OR Apache-2.0
# make link-only stand-ins for the CUDA libraries that a CUDA build of torch names, so that it imports on a CPU machine
import re,subprocess,collections,os,sys,glob
L,out=sys.argv[1],sys.argv[2]
by=collections.defaultdict(set)
need=set()
for f in glob.glob(L+'/*.so'):
    t=subprocess.run(['nm','-D','--undefined-only',f],capture_output=True,text=True).stdout
    for l in t.splitlines():
        s=l.split()[-1]
        n,_,v=s.partition('@')
        if re.match(r'^(cublas|cudnn|cufft|cusparse|nccl|cuFile|nvrtc|nvshmem|cusolver|cu[A-Z]|nvJitLink|cupti|nvml)',n): by[v].add(n)
    t=subprocess.run(['readelf','-d',f],capture_output=True,text=True).stdout
    need|=set(re.findall(r'NEEDED.*\[(lib(?:cu(?!dart)|nv|nccl)[^\]]*)\]',t))
print(sorted(need), {k:len(v) for k,v in by.items()})
os.makedirs(out,exist_ok=True)
uns=by.pop('',set())
for so in sorted(need):
    ver='NVSHMEM' if 'nvshmem' in so else so
    syms=by.get(ver,set())
    # unversioned symbols go where their prefix says, else everywhere harmlessly
    mine={s for s in uns if (so.startswith('libnccl') and s.startswith('nccl')) or (so.startswith('libcusparseLt') and s.startswith('cusparseLt')) or (so.startswith('libcufile') and s.startswith('cuFile')) or (so.startswith('libcuda.') and re.match('cu[A-Z]',s)) or (so.startswith('libcupti') and s.startswith('cupti'))}
    c=f'{out}/s.c'; m=f'{out}/s.map'
    open(c,'w').write(''.join(f'long {s}(void){{return 100;}}\n' for s in sorted(syms|mine)) or 'int stub_empty;\n')
    cmd=['gcc','-O1','-fPIC','-shared','-w','-o',f'{out}/{so}',c,f'-Wl,-soname,{so}']
    if syms:
        open(m,'w').write(f'{ver} {{ global: '+' '.join(s+';' for s in sorted(syms))+' };\n'); cmd.append(f'-Wl,--version-script={m}')
    subprocess.run(cmd,check=True)
