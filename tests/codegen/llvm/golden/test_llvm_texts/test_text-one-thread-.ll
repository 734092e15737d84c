; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias captures(none) align 4 dereferenceable(4) %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  store float 0x0000000000000000, ptr %C, align 4
  %.6 = icmp slt i64 0, %n
  br i1 %.6, label %i_body.4, label %i_done.5
i_body.4:
  %i.7 = phi i64 [ 0, %first.1 ], [ %i_next.12, %i_body.4 ]
  %.8 = load float, ptr %C, align 4
  %.9 = getelementptr inbounds float, ptr %A, i64 %i.7
  %.10 = load float, ptr %.9, align 4
  %.11 = fadd contract float %.8, %.10
  store float %.11, ptr %C, align 4
  %i_next.12 = add nuw nsw i64 %i.7, 1
  %.13 = icmp slt i64 %i_next.12, %n
  br i1 %.13, label %i_body.4, label %i_done.5, !llvm.loop !0
i_done.5:
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.unroll.disable"}}
; znver4

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias captures(none) align 4 dereferenceable(4) %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  store float 0x0000000000000000, ptr %C, align 4
  %.6 = icmp slt i64 0, %n
  br i1 %.6, label %i_body.4, label %i_done.5
i_body.4:
  %i.7 = phi i64 [ 0, %first.1 ], [ %i_next.12, %i_body.4 ]
  %.8 = load float, ptr %C, align 4
  %.9 = getelementptr inbounds float, ptr %A, i64 %i.7
  %.10 = load float, ptr %.9, align 4
  %.11 = fadd contract float %.8, %.10
  store float %.11, ptr %C, align 4
  %i_next.12 = add nuw nsw i64 %i.7, 1
  %.13 = icmp slt i64 %i_next.12, %n
  br i1 %.13, label %i_body.4, label %i_done.5, !llvm.loop !0
i_done.5:
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.unroll.disable"}}
