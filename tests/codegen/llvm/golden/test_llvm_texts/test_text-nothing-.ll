; x86-64-v3

define void @f(ptr noalias captures(none) align 4 %C, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  br label %join.2
join.2:
  ret void
}
; znver4

define void @f(ptr noalias captures(none) align 4 %C, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  br label %join.2
join.2:
  ret void
}
