; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 4 dereferenceable(256) %A, ptr noalias captures(none) align 4 dereferenceable(256) %C, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %t.4 = alloca [64 x float], align 64
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  br label %i_body.5
i_body.5:
  %i.7 = phi i64 [ 0, %first.1 ], [ %i_next.13, %i_body.5 ]
  %.8 = mul nsw i64 %i.7, -1
  %.9 = add nsw i64 %.8, 63
  %.10 = getelementptr inbounds float, ptr %A, i64 %.9
  %.11 = load float, ptr %.10, align 4
  %.12 = getelementptr inbounds float, ptr %t.4, i64 %i.7
  store float %.11, ptr %.12, align 4
  %i_next.13 = add nuw nsw i64 %i.7, 1
  %.14 = icmp slt i64 %i_next.13, 64
  br i1 %.14, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %j_body.15
j_body.15:
  %j.17 = phi i64 [ 0, %i_done.6 ], [ %j_next.23, %j_body.15 ]
  %.18 = getelementptr inbounds float, ptr %t.4, i64 %j.17
  %.19 = load float, ptr %.18, align 4
  %.20 = load float, ptr %t.4, align 64
  %.21 = fmul contract float %.19, %.20
  %.22 = getelementptr inbounds float, ptr %C, i64 %j.17
  store float %.21, ptr %.22, align 4
  %j_next.23 = add nuw nsw i64 %j.17, 1
  %.24 = icmp slt i64 %j_next.23, 64
  br i1 %.24, label %j_body.15, label %j_done.16, !llvm.loop !1
j_done.16:
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.unroll.disable"}}
!1 = distinct !{!1, !{!"llvm.loop.unroll.disable"}}
; znver4

define void @f(ptr noalias readonly captures(none) align 4 dereferenceable(256) %A, ptr noalias captures(none) align 4 dereferenceable(256) %C, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %t.4 = alloca [64 x float], align 64
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  br label %i_body.5
i_body.5:
  %i.7 = phi i64 [ 0, %first.1 ], [ %i_next.13, %i_body.5 ]
  %.8 = mul nsw i64 %i.7, -1
  %.9 = add nsw i64 %.8, 63
  %.10 = getelementptr inbounds float, ptr %A, i64 %.9
  %.11 = load float, ptr %.10, align 4
  %.12 = getelementptr inbounds float, ptr %t.4, i64 %i.7
  store float %.11, ptr %.12, align 4
  %i_next.13 = add nuw nsw i64 %i.7, 1
  %.14 = icmp slt i64 %i_next.13, 64
  br i1 %.14, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %j_body.15
j_body.15:
  %j.17 = phi i64 [ 0, %i_done.6 ], [ %j_next.23, %j_body.15 ]
  %.18 = getelementptr inbounds float, ptr %t.4, i64 %j.17
  %.19 = load float, ptr %.18, align 4
  %.20 = load float, ptr %t.4, align 64
  %.21 = fmul contract float %.19, %.20
  %.22 = getelementptr inbounds float, ptr %C, i64 %j.17
  store float %.21, ptr %.22, align 4
  %j_next.23 = add nuw nsw i64 %j.17, 1
  %.24 = icmp slt i64 %j_next.23, 64
  br i1 %.24, label %j_body.15, label %j_done.16, !llvm.loop !1
j_done.16:
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.unroll.disable"}}
!1 = distinct !{!1, !{!"llvm.loop.unroll.disable"}}
