; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias captures(none) align 4 %C, i64 %m, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = mul i64 %m, %n
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %t_body.5, label %t_done.6
t_body.5:
  %t.8 = phi i64 [ 0, %first.1 ], [ %t_next.22, %k_done.12 ]
  %.9 = udiv i64 %t.8, %n
  %.10 = urem i64 %t.8, %n
  br label %k_body.11
k_body.11:
  %k.13 = phi i64 [ 0, %t_body.5 ], [ %k_next.20, %k_body.11 ]
  %.14 = mul nsw i64 %n, %.9
  %.15 = getelementptr inbounds float, ptr %A, i64 %.14
  %.16 = load float, ptr %.15, align 4
  %.17 = sitofp i64 %k.13 to float
  %.18 = fadd contract float %.16, %.17
  %.19 = getelementptr inbounds float, ptr %C, i64 %t.8
  store float %.18, ptr %.19, align 4
  %k_next.20 = add nuw nsw i64 %k.13, 1
  %.21 = icmp slt i64 %k_next.20, 2
  br i1 %.21, label %k_body.11, label %k_done.12
k_done.12:
  %t_next.22 = add nuw nsw i64 %t.8, 1
  %.23 = icmp slt i64 %t_next.22, %.4
  br i1 %.23, label %t_body.5, label %t_done.6, !llvm.loop !0
t_done.6:
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.unroll.disable"}}
; znver4

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias captures(none) align 4 %C, i64 %m, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = mul i64 %m, %n
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %t_body.5, label %t_done.6
t_body.5:
  %t.8 = phi i64 [ 0, %first.1 ], [ %t_next.22, %k_done.12 ]
  %.9 = udiv i64 %t.8, %n
  %.10 = urem i64 %t.8, %n
  br label %k_body.11
k_body.11:
  %k.13 = phi i64 [ 0, %t_body.5 ], [ %k_next.20, %k_body.11 ]
  %.14 = mul nsw i64 %n, %.9
  %.15 = getelementptr inbounds float, ptr %A, i64 %.14
  %.16 = load float, ptr %.15, align 4
  %.17 = sitofp i64 %k.13 to float
  %.18 = fadd contract float %.16, %.17
  %.19 = getelementptr inbounds float, ptr %C, i64 %t.8
  store float %.18, ptr %.19, align 4
  %k_next.20 = add nuw nsw i64 %k.13, 1
  %.21 = icmp slt i64 %k_next.20, 2
  br i1 %.21, label %k_body.11, label %k_done.12
k_done.12:
  %t_next.22 = add nuw nsw i64 %t.8, 1
  %.23 = icmp slt i64 %t_next.22, %.4
  br i1 %.23, label %t_body.5, label %t_done.6, !llvm.loop !0
t_done.6:
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.unroll.disable"}}
